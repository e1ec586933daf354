package events

// RouteTopic is where a consumer is handed an event by the one before it on the event's route.
func RouteTopic(consumer string) string { return StreamOrders + ".route." + consumer }

// ReplayTopic is where a consumer is given events of the past that it asked for.
func ReplayTopic(consumer string) string { return StreamOrders + ".replay." + consumer }

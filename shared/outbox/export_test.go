package outbox

import "time"

// SetHook has the relay call hook at each of its named steps. Before Run only.
func SetHook(r *Relay, hook func(step string)) { r.hook = hook }

// SetPurgeEvery shortens the interval of the purge. Before Run only.
func SetPurgeEvery(r *Relay, d time.Duration) { r.purgeEvery = d }

package consumer

import (
	"encoding/json"
	"time"
)

// failure is one failed attempt, as a row and its letter remember it.
type failure struct {
	At      time.Time `json:"at"`
	Attempt int       `json:"attempt"`
	Error   string    `json:"error"`
}

const (
	maxHistory = 20  // failures
	maxFailure = 400 // bytes of one error
)

// remember adds a failure to a history. What cannot be read starts anew.
func remember(history string, f failure) string {
	var all []failure
	if json.Unmarshal([]byte(history), &all) != nil {
		all = nil
	}
	f.Error = clean(f.Error, maxFailure)
	all = append(all, f)
	text, err := json.Marshal(all[max(0, len(all)-maxHistory):])
	if err != nil {
		return "[]" // strings, numbers and times always encode
	}
	return string(text)
}

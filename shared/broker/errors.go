package broker

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Errors of publishing. What is none of these has an unknown outcome: the
// message may or may not be in the stream.
var (
	// ErrDuplicate: a batch held a message whose publish id the stream has seen; nothing of the batch was stored.
	ErrDuplicate = errors.New("duplicate publish id in batch")
	// ErrFull: the stream is at its limit; nothing was stored.
	ErrFull = errors.New("stream full")
	// ErrRefused: the broker will never take this message (too large, impossible topic, bad header).
	ErrRefused = errors.New("message refused")
	// ErrNoStream: the stream does not exist; nothing was stored.
	ErrNoStream = errors.New("no such stream")
	// ErrDisconnected: there is no connection to the broker; nothing was sent.
	ErrDisconnected = errors.New("not connected to the broker")
	// ErrClosed: the publisher or subscriber is closed.
	ErrClosed = errors.New("closed")
)

// Error codes of the server (its errors.json) that decide an outcome.
const (
	codeAccountResources jetstream.ErrorCode = 10002
	codeResources        jetstream.ErrorCode = 10023
	codeMemory           jetstream.ErrorCode = 10028
	codeStorage          jetstream.ErrorCode = 10047
	codeMessageTooLarge  jetstream.ErrorCode = 10054
	codeStoreFailed      jetstream.ErrorCode = 10077
	codeHeaderTooLarge   jetstream.ErrorCode = 10097
	codeIDInProcess      jetstream.ErrorCode = 10158
	codeBatchDuplicate   jetstream.ErrorCode = 10201
)

// publishError says what err means for a publish that was tried.
func publishError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w: %w", ErrNoStream, err)
	}
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return err
	}
	switch api.ErrorCode {
	case codeBatchDuplicate, codeIDInProcess: // the latter also for minutes after a batch that could not be stored
		return fmt.Errorf("%w: %w", ErrDuplicate, err)
	case codeMessageTooLarge, codeHeaderTooLarge:
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case codeAccountResources, codeResources, codeMemory, codeStorage:
		return fmt.Errorf("%w: %w", ErrFull, err)
	case codeStoreFailed:
		return storeError(api, err)
	}
	return err
}

// storeError tells the cases of "store failed" apart, which the server only does in
// words: a limit, a message over the store's own bound, or a disk that failed.
func storeError(api *jetstream.APIError, err error) error {
	switch {
	case strings.HasPrefix(api.Description, "maximum ") && strings.HasSuffix(api.Description, " exceeded"):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case strings.Contains(api.Description, "message to large"), strings.Contains(api.Description, "message too large"):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

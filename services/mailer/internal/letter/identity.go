package letter

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/shared/events"
)

// deliveryID names the delivery of one event to one recipient by one template.
//
// It is made of the event and nothing else, so that every replica and every
// attempt gives a mail the same file name and Message-ID, and of a hash, so
// that whatever a foreign event id contains cannot leave the folder. The form
// is a UUID of version 8: the event's millisecond and order version first, so
// that a reader who takes files by name meets an order's mails in order, then
// 62 bits of the hash.
func deliveryID(e events.Event, recipient, template string) string {
	hash := sha256.New()
	for _, part := range []string{e.ID, recipient, template} {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		hash.Write(length[:]) // a hash never fails to write
		hash.Write([]byte(part))
	}
	sum := hash.Sum(nil)

	const maxMillis, maxVersion = 1<<48 - 1, 1<<12 - 1
	millis := uint64(min(max(e.Time.UnixMilli(), 0), maxMillis))
	version := uint16(min(max(e.Version, 0), maxVersion))
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], millis<<16|uint64(version))
	copy(id[8:], sum)
	id[6] = id[6]&0x0f | 0x80 // version 8: custom
	id[8] = id[8]&0x3f | 0x80 // variant of RFC 9562
	return id.String()
}

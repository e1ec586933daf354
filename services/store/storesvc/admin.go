package storesvc

import (
	"net/http"

	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/operate"
)

// Admin is what operators may ask the store.
func (s *Service) Admin() http.Handler { return Admin(s.db) }

// Admin is the same on a database that no store works on.
func Admin(db *database.DB) http.Handler {
	return operate.StoreHandler(func(r *http.Request, order string, from, to int64, limit int) ([]operate.StoredEvent, error) {
		bodies, err := orderdb.Bodies(r.Context(), db.Read(), order, from, to, limit)
		if err != nil {
			return nil, err
		}
		found := make([]operate.StoredEvent, len(bodies))
		for n, b := range bodies {
			found[n] = operate.StoredEvent{ID: b.ID, Version: b.Version, Body: string(b.Payload)}
		}
		return found, nil
	})
}

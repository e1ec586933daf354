package main

import (
	"context"
	"os"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// cost is what the whole machine spent on something, the database server and whatever else ran included.
type cost struct {
	busy float64 // CPU time of all cores in milliseconds; 0 where there is no /proc/stat
	wal  float64 // KB that PostgreSQL logged
	disk float64 // KB by which the databases grew
}

// spend starts counting. The function that it returns adds the cost of each of n items to f.
func (e *env) spend(ctx context.Context) (until func(f figures, n int) error, err error) {
	before, err := e.spent(ctx)
	if err != nil {
		return nil, err
	}
	return func(f figures, n int) error {
		now, err := e.spent(ctx)
		if err != nil {
			return err
		}
		each := 1 / float64(n)
		f["busy_ms"], f["wal_kb"], f["disk_kb"] = (now.busy-before.busy)*each, (now.wal-before.wal)*each, (now.disk-before.disk)*each
		return nil
	}, nil
}

func (e *env) spent(ctx context.Context) (c cost, err error) {
	conn, err := pgx.Connect(ctx, e.Postgres)
	if err != nil {
		return c, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 / 1024,
		(SELECT coalesce(sum(pg_database_size(oid)), 0)::float8 / 1024 FROM pg_database WHERE datname LIKE 'pillarbox_bench_%')`).Scan(&c.wal, &c.disk)
	if err != nil {
		return c, err
	}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return c, nil // not Linux
	}
	first, _, _ := strings.Cut(string(stat), "\n")
	for n, field := range strings.Fields(first) { // cpu user nice system idle iowait irq softirq …, in hundredths of a second
		if n == 0 || n == 4 || n == 5 || n > 7 {
			continue
		}
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return c, err
		}
		c.busy += ticks * 10
	}
	return c, nil
}

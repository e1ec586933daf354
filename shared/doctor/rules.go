package doctor

import "slices"

// Check is one of the ten things that are looked at.
type Check string

// The ten checks, in the order of their codes.
const (
	Copies   Check = "stream copies and fsync"
	Discard  Check = "discard and retention"
	Deadline Check = "ack deadline"
	Memory   Check = "dedup and replay"
	Postgres Check = "PostgreSQL durability"
	SQLite   Check = "SQLite"
	Folder   Check = "pickup and staging"
	Rights   Check = "permissions"
	Clock    Check = "clocks"
	Schema   Check = "schema versions"
)

// Checks are the ten checks in order.
func Checks() []Check {
	return []Check{Copies, Discard, Deadline, Memory, Postgres, SQLite, Folder, Rights, Clock, Schema}
}

// Codes. The number before the last two digits is the check's; a code is never used for something else.
const (
	StreamNotSynced   Code = "PBX-101"
	StreamInMemory    Code = "PBX-102"
	StreamFewCopies   Code = "PBX-103"
	StreamDiscardsOld Code = "PBX-201"
	StreamRetention   Code = "PBX-202"
	StreamExpires     Code = "PBX-203"
	StreamPerSubject  Code = "PBX-204"
	StreamTooSmall    Code = "PBX-205"
	StreamUnbounded   Code = "PBX-206"
	DurableGivesUp    Code = "PBX-301"
	DurableAcks       Code = "PBX-302"
	DurableDeadline   Code = "PBX-303"
	DurableVanishes   Code = "PBX-304"
	DedupTooShort     Code = "PBX-401"
	DuplicateWindow   Code = "PBX-402"
	PGFsync           Code = "PBX-501"
	PGSyncCommit      Code = "PBX-502"
	PGFullPages       Code = "PBX-503"
	PGUnlogged        Code = "PBX-504"
	SQLiteJournal     Code = "PBX-601"
	SQLiteSync        Code = "PBX-602"
	SQLiteLinks       Code = "PBX-603"
	DataFileSystem    Code = "PBX-604"
	FolderFileSystem  Code = "PBX-701"
	FolderApart       Code = "PBX-702"
	FolderTrial       Code = "PBX-703"
	FolderUnmarked    Code = "PBX-704"
	OpenToAll         Code = "PBX-801"
	SecretReadable    Code = "PBX-802"
	FolderOpen        Code = "PBX-803"
	RoleTooStrong     Code = "PBX-804"
	RoleTooWeak       Code = "PBX-805"
	BrokerTooOpen     Code = "PBX-806"
	ClockDatabase     Code = "PBX-901"
	ClockBroker       Code = "PBX-902"
	SchemaBehind      Code = "PBX-1001"
	SchemaAhead       Code = "PBX-1002"
	SchemaBroken      Code = "PBX-1003"
)

// Rules returns the table of rules by code.
func Rules() []Rule { return slices.Clone(table[:]) }

// RuleOf returns the rule of a code. It panics on a code that is not in the table.
func RuleOf(code Code) Rule {
	i := slices.IndexFunc(table[:], func(r Rule) bool { return r.Code == code })
	if i < 0 {
		panic("doctor: no rule " + string(code))
	}
	return table[i]
}

// table is never changed.
var table = [...]Rule{
	{StreamNotSynced, Error, Copies, "one copy of the stream, and the server does not fsync each write",
		"P2: a power loss of the broker takes back events that it confirmed",
		"set sync_interval: always in the server's jetstream block and restart it, or run three servers and PILLARBOX_STORE_STREAM_REPLICAS=3", false},
	{StreamInMemory, Error, Copies, "the stream is kept in memory",
		"P2: a restart of the broker takes back events that it confirmed",
		"remove the stream (suite queue rm orders) with the store running: it makes a new one on disk and publishes its horizon again", false},
	{StreamFewCopies, Warning, Copies, "fewer copies of the stream than set or than the cluster could hold",
		"P2 and P5: one server's disk holds all that was not handled yet",
		"set PILLARBOX_STORE_STREAM_REPLICAS=3 and restart the store", false},
	{StreamDiscardsOld, Error, Discard, "a full stream drops its oldest messages",
		"P2: events that nobody has handled yet are dropped without a word",
		"restart the store, which sets it right, or: nats stream edit orders --discard=new", false},
	{StreamRetention, Error, Discard, "retention is not by limits",
		"P2 and P5: messages vanish when one consumer has them, and every ack costs an fsync",
		"the policy of a stream cannot be changed: remove it (suite queue rm orders) with the store running, which makes a new one", false},
	{StreamExpires, Error, Discard, "messages expire",
		"P2 and P5: a consumer that is down for longer loses events",
		"restart the store, which sets it right, or: nats stream edit orders --max-age=0", false},
	{StreamPerSubject, Error, Discard, "the number of messages is limited, in all or per subject",
		"P2 and P5: what was not handled yet is dropped or refused far below the stream's size",
		"nats stream edit orders --max-msgs=-1 --max-msgs-per-subject=-1", false},
	{StreamTooSmall, Error, Discard, "the broker refuses messages that the store accepts",
		"P1 and P2: an order with a large event is accepted and its event is never published",
		"set max_payload: 1MB in the server's configuration, and no --max-msg-size on the stream", false},
	{StreamUnbounded, Warning, Discard, "the stream's size is not limited",
		"P8: it grows until the broker's disk is full, which stops the stream until a restart",
		"set PILLARBOX_STORE_STREAM_MAX_BYTES and restart the store", false},
	{DurableGivesUp, Error, Deadline, "the broker stops to deliver a message after some attempts",
		"P2: an event that a replica could not handle in time that often is skipped without a word",
		"restart the service, which sets its consumer right, or: nats consumer edit orders NAME --max-deliver=-1", false},
	{DurableAcks, Error, Deadline, "messages count as handled without an explicit ack",
		"P2: a crash loses the events in hand",
		"remove the consumer (suite queue rm orders -c NAME) with the service stopped and start the service, which makes a new one", false},
	{DurableDeadline, Warning, Deadline, "handling takes longer than the ack deadline",
		"P3 and P4: only heartbeats keep messages from a second replica; every hiccup does the work twice",
		"find out what is slow (the service's log, its database), or make PILLARBOX_<SERVICE>_BATCH smaller", false},
	{DurableVanishes, Error, Deadline, "the broker removes the consumer after a time without a reader",
		"P5: a service that is down for longer loses its position",
		"restart the service, which sets its consumer right, or: nats consumer edit orders NAME --inactive-threshold=0", false},
	{DedupTooShort, Error, Memory, "events can be replayed for longer than a consumer remembers them",
		"P3: a refill or a replay repeats effects (a second mail, a second credit)",
		"set PILLARBOX_<SERVICE>_KEEP to PILLARBOX_STORE_HORIZON and two hours at least", false},
	{DuplicateWindow, Warning, Memory, "the broker forgets publish ids within two minutes",
		"P3 at its cost: what the relay repeats after a crash is stored twice, and every consumer has to recognise it",
		"restart the store, which sets it right, or: nats stream edit orders --dupe-window=2m", false},
	{PGFsync, Error, Postgres, "fsync is off",
		"P1 to P4: a power loss of the database destroys what was confirmed, and may destroy the whole cluster",
		"ALTER SYSTEM SET fsync = on, then SELECT pg_reload_conf()", false},
	{PGSyncCommit, Warning, Postgres, "synchronous_commit is off for the role, the database or the server",
		"P1 to P3: commits of the last moments are lost at a crash; the services switch it on in their own sessions, behind a pooler that may not hold",
		"ALTER ROLE … RESET synchronous_commit, ALTER DATABASE … RESET synchronous_commit, or ALTER SYSTEM SET synchronous_commit = on and SELECT pg_reload_conf()", false},
	{PGFullPages, Error, Postgres, "full_page_writes is off",
		"P1 to P4: a power loss in the middle of a page leaves it torn, and recovery cannot mend it",
		"ALTER SYSTEM SET full_page_writes = on, then SELECT pg_reload_conf()", false},
	{PGUnlogged, Error, Postgres, "tables are unlogged",
		"P1 to P4: a crash of the database empties them",
		"ALTER TABLE … SET LOGGED", false},
	{SQLiteJournal, Error, SQLite, "the file is not in WAL mode",
		"P1 and P5: readers and the writer block each other, and another program has changed the file's mode",
		"stop the suite, make sure that no other program opens the file, and start the suite, which sets it right", false},
	{SQLiteSync, Error, SQLite, "commits are not fsynced",
		"P1 to P4: a power loss takes back what was confirmed",
		"keep the data folder on a local file system, and start the suite again", false},
	{SQLiteLinks, Error, SQLite, "the file has a second name",
		"P1 to P4: who opens it by the other name uses another log, and both destroy the file",
		"remove the other name; copy with VACUUM INTO or sqlite3 .backup, not with links", false},
	{DataFileSystem, Error, SQLite, "the data folder is on a file system that does not keep what was fsynced",
		"P1 to P4: locks or fsync do not hold there, or everything is gone after a power loss",
		"keep the data folder on a local disk", false},
	{FolderFileSystem, Error, Folder, "the pickup folder is on a file system that is not supported",
		"P2 and P3: rename or fsync do not hold there, so that mails vanish, come twice, or are half",
		"keep pickup and staging on a local disk, and let a mail server on the same host take mails from it", false},
	{FolderApart, Error, Folder, "staging and pickup are not on one file system",
		"P2: a mail cannot be moved into the pickup folder in one step, so none appears",
		"keep .staging a plain folder in the pickup folder: no mount and no link", false},
	{FolderTrial, Error, Folder, "writing, fsync or rename fails",
		"P2: the mailer cannot publish, and pauses",
		"read the error: space, permissions, a read-only mount, a failing disk", false},
	{FolderUnmarked, Error, Folder, "the folder is not the one that the database knows",
		"P2 and P3: it is missing, not mounted, or another one; the mailer pauses",
		"mount the folder; if it is to be a new one, write the marker that the message names into its file .pillarbox-pickup and make its folder .staging as the mailer's user, mode 700; mails that were staged in the old one then count as published (suite reconcile: assumed)", false},
	{OpenToAll, Error, Rights, "everybody on this host may change the data",
		"P1 to P4: any program may replace databases and the broker's store",
		"chmod o-w on the data folder and its files", false},
	{SecretReadable, Error, Rights, "others on this host may read the broker's token",
		"P2: with it they may delete the stream",
		"chmod 600 run.json", false},
	{FolderOpen, Warning, Rights, "others may write to the folder of unpublished mails, or everybody to the pickup folder",
		"P3: they may change, forge or remove mails",
		"chmod o-w on the pickup folder, chmod 700 on .staging", false},
	{RoleTooStrong, Warning, Rights, "the service's role may change the schema",
		"P1 to P4 against mistakes and intruders: the service needs rows only",
		"give migrations a role of their own: PILLARBOX_<SERVICE>_MIGRATE_URL, see services/deploy/postgres-init.sh", false},
	{RoleTooWeak, Error, Rights, "the service's role may not use its tables",
		"P1 and P5: every request or event fails there",
		"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA … TO the role, see services/deploy/postgres-init.sh", false},
	{BrokerTooOpen, Warning, Rights, "the service's NATS user may do more than it needs",
		"P2 against mistakes and intruders: it may delete streams, or publish events that no order stands behind",
		"give each service a user with the permissions of services/deploy/nats.conf", false},
	{ClockDatabase, Warning, Clock, "this host's clock and the database's differ",
		"P7: ages and the times in mails and records are wrong by as much",
		"synchronise the clocks (chrony, ntpd, systemd-timesyncd)", false},
	{ClockBroker, Warning, Clock, "this host's clock and the broker's differ",
		"P7: ages are wrong by as much, and a pause ends too early or too late",
		"synchronise the clocks (chrony, ntpd, systemd-timesyncd)", false},
	{SchemaBehind, Error, Schema, "the schema is older than the program",
		"P1 and P5: statements fail on what is missing",
		"start the service: it applies its migrations; look into its log when it does not", false},
	{SchemaAhead, Warning, Schema, "the schema is newer than the program",
		"P6: fine while an upgrade is under way; an older program is not made for more than one step",
		"finish the upgrade, or go back to the release that the schema belongs to", true},
	{SchemaBroken, Error, Schema, "migrations are missing in the middle, or noted as undone",
		"P1 and P5: nobody knows what the tables look like",
		"restore the table goose_db_version from a backup, or compare the tables with migrations/ by hand", false},
}

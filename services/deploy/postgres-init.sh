#!/bin/bash
# Runs once in an empty PostgreSQL: for each service a schema, a role that owns
# it and may change it (<service>_owner, for migrations), and a role that may only
# work with its rows (<service>). No role sees another's schema.
set -euo pipefail

password() { # password SERVICE: from PILLARBOX_<SERVICE>_DB_PASSWORD
  local name="PILLARBOX_${1^^}_DB_PASSWORD"
  printf '%s' "${!name:?is not set}"
}

for service in store mailer audit loyalty; do
  psql -v ON_ERROR_STOP=1 -q -U "${POSTGRES_USER:-postgres}" -d "$POSTGRES_DB" \
    -v service="$service" -v owner="${service}_owner" -v database="$POSTGRES_DB" -v password="$(password "$service")" <<'SQL'
CREATE ROLE :"owner" LOGIN PASSWORD :'password' NOINHERIT;
CREATE ROLE :"service" LOGIN PASSWORD :'password' NOINHERIT;
CREATE SCHEMA :"service" AUTHORIZATION :"owner";
ALTER ROLE :"owner" IN DATABASE :"database" SET search_path = :"service";
ALTER ROLE :"service" IN DATABASE :"database" SET search_path = :"service";
-- What a direct connection sets itself; through a pooler the role has to have it (docs/operations.md).
ALTER ROLE :"service" IN DATABASE :"database" SET lock_timeout = '1s';
ALTER ROLE :"service" IN DATABASE :"database" SET idle_in_transaction_session_timeout = '3s';
ALTER ROLE :"service" IN DATABASE :"database" SET statement_timeout = '10s';
ALTER ROLE :"owner" IN DATABASE :"database" SET lock_timeout = '5s';
GRANT USAGE ON SCHEMA :"service" TO :"service";
ALTER DEFAULT PRIVILEGES FOR ROLE :"owner" IN SCHEMA :"service" GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO :"service";
ALTER DEFAULT PRIVILEGES FOR ROLE :"owner" IN SCHEMA :"service" GRANT USAGE, SELECT ON SEQUENCES TO :"service";
GRANT CONNECT ON DATABASE :"database" TO :"owner", :"service";
SQL
done

psql -v ON_ERROR_STOP=1 -q -U "${POSTGRES_USER:-postgres}" -d "$POSTGRES_DB" -v database="$POSTGRES_DB" <<'SQL'
REVOKE ALL ON DATABASE :"database" FROM PUBLIC;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
SQL

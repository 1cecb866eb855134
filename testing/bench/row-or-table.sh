#!/bin/sh
# A lock as a row of a table (insert, delete) beside a lock on a row (select for update), bare, on a
# PostgreSQL of its own: pgbench counts locks a second, alone and by 10 clients. Run it as root;
# the server runs as postgres. Prints one line for each round, load and way.
set -eu
port=${1:-15432}
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
dir=$(mktemp -d)
chown postgres "$dir"
stop() {
    runuser -u postgres -- "$bin/pg_ctl" -D "$dir/data" -m immediate stop >/dev/null || true
    rm -rf "$dir"
}
trap stop EXIT
runuser -u postgres -- "$bin/initdb" -D "$dir/data" -A trust >/dev/null
runuser -u postgres -- "$bin/pg_ctl" -D "$dir/data" -w -l "$dir/log" start >/dev/null \
    -o "-p $port -k $dir -c listen_addresses=127.0.0.1"
ask() { psql -qAt -h 127.0.0.1 -p "$port" -U postgres postgres -c "$1"; }
ask "create table t (k int primary key)"
ask "create table r (k int primary key)"
ask "insert into r select generate_series(0, 200)"
ask "create sequence had"
cat > "$dir/own-table" <<'X'
INSERT INTO t VALUES (:client_id);
DELETE FROM t WHERE k = :client_id;
X
cat > "$dir/own-row" <<'X'
BEGIN;
SELECT k FROM r WHERE k = :client_id FOR UPDATE;
COMMIT;
X
cat > "$dir/one-row" <<'X'
BEGIN;
SELECT k FROM r WHERE k = 0 FOR UPDATE;
COMMIT;
X
# A client that does not get it looks again after 50 ms; only locks that were had are counted.
cat > "$dir/one-table" <<'X'
WITH i AS (INSERT INTO t VALUES (0) ON CONFLICT DO NOTHING RETURNING nextval('had'))
    SELECT count(*) AS got FROM i \gset
\if :got
DELETE FROM t WHERE k = 0;
\else
\sleep 50 ms
\endif
X
for round in 1 2 3; do
    for clients in 1 10; do
        for way in own-table own-row one-table one-row; do
            ask "delete from t" && ask "select setval('had', 1)" >/dev/null
            rate=$("$bin/pgbench" -h 127.0.0.1 -p "$port" -U postgres -n -c "$clients" -j 2 -T 3 \
                -f "$dir/$way" postgres 2>/dev/null | sed -n 's/^tps = \([0-9.]*\).*/\1/p')
            [ "$way" != one-table ] || rate=$(ask "select (last_value - 1) / 3 from had")
            echo "round $round, $clients clients, $way: $rate locks/s"
        done
    done
done

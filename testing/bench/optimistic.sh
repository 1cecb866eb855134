#!/bin/sh
# An update by version beside one under a row's lock, bare, on a PostgreSQL of its own: pgbench
# counts updates a second by 10 clients, of a thousand rows at random and of one, with 0 and 2 ms of
# work between reading and writing. Run it as root; the server runs as postgres.
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
ask "create table r (k int primary key, n int not null, version int not null) with (fillfactor = 50)"
ask "insert into r select generate_series(0, 999), 0, 0"
for work in 0 2; do
    [ $work = 0 ] && pause="" || pause="\\sleep $work ms"
    cat > "$dir/lock-$work" <<X
\\set k random(0, :rows - 1)
BEGIN;
SELECT n FROM r WHERE k = :k FOR UPDATE \\gset
$pause
UPDATE r SET n = :n + 1 WHERE k = :k;
COMMIT;
X
    # A client that was too late does it again at once, as another transaction: only what was written counts.
    cat > "$dir/version-$work" <<X
\\set k random(0, :rows - 1)
SELECT n, version FROM r WHERE k = :k \\gset
$pause
UPDATE r SET n = :n + 1, version = version + 1 WHERE k = :k AND version = :version;
X
done
for round in 1 2 3; do
    for rows in 1000 1; do
        for work in 0 2; do
            for way in lock version; do
                ask "update r set n = 0, version = 0"
                ask "vacuum r"
                tries=$("$bin/pgbench" -h 127.0.0.1 -p "$port" -U postgres -n -c 10 -j 2 -T 3 \
                    -D rows=$rows -f "$dir/$way-$work" postgres 2>/dev/null |
                    sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p')
                done=$(ask "select sum(n) from r")
                echo "round $round, $rows rows, $work ms, $way: $((done / 3)) updates/s," \
                    "$((tries * 100 / done)) tries for 100"
            done
        done
    done
done

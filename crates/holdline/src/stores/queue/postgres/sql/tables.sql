-- The tables of holdline's locks, version 1, for PostgreSQL 13 or later. May be run more than once,
-- in one transaction with the functions. Times are microseconds since 1970 by this server's clock.
-- See docs/layouts/postgres.md.
SELECT pg_advisory_xact_lock(x'686f6c64'::bigint); -- one installation at a time

DO $$ BEGIN
  -- An installation by an older program leaves a newer version alone.
  IF to_regprocedure('"holdline".version()') IS NOT NULL THEN
    IF "holdline".version() > 1 THEN
      RAISE EXCEPTION 'version % is installed, and this is version 1', "holdline".version()
        USING ERRCODE = 'HL001';
    END IF;
  END IF;
  -- Even IF NOT EXISTS would need the right to create schemas.
  IF to_regnamespace('"holdline"') IS NULL THEN
    CREATE SCHEMA "holdline";
  END IF;
END $$;

-- The head of each lock's line, and its first place; most lines never have a second. Empty lines
-- are kept, because their tokens must keep rising; `last` of the line without a name is the highest
-- of those that were swept. No column that changes is indexed, so that an update stays on its page.
CREATE TABLE IF NOT EXISTS "holdline".line (
  name text COLLATE "C" PRIMARY KEY,
  no bigint GENERATED ALWAYS AS IDENTITY,
  capacity bigint NOT NULL DEFAULT 0,               -- of the tickets in the line
  last bigint NOT NULL DEFAULT 0,                   -- the highest token assigned or reserved
  count bigint NOT NULL DEFAULT 0,                  -- number of places, with the first
  held bigint NOT NULL DEFAULT 0,                   -- weight of the admitted places
  front bigint NOT NULL DEFAULT 9223372036854775807, -- the first waiting place
  due bigint NOT NULL DEFAULT 9223372036854775807,  -- no place expires before this
  barred bigint NOT NULL DEFAULT 0,                 -- a ticket is barred until then
  id uuid, seq bigint, weight bigint, expires bigint, channel text, note text -- the first place
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- The places behind the first. `channel` is the owner's process's, for notices.
CREATE TABLE IF NOT EXISTS "holdline".place (
  line bigint NOT NULL,
  seq bigint NOT NULL,
  id uuid NOT NULL,
  weight bigint NOT NULL,
  expires bigint NOT NULL,
  channel text NOT NULL,
  note text NOT NULL,
  PRIMARY KEY (line, seq),
  UNIQUE (line, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Tickets that left while a request of theirs to enter may still be in flight.
CREATE TABLE IF NOT EXISTS "holdline".barred (
  line bigint NOT NULL,
  id uuid NOT NULL,
  until bigint NOT NULL,
  PRIMARY KEY (line, id)
);
CREATE INDEX IF NOT EXISTS barred_until ON "holdline".barred (line, until);

-- Places removed by force in the last minute, at most 8 of each line.
CREATE TABLE IF NOT EXISTS "holdline".eviction (
  line bigint NOT NULL,
  no bigint GENERATED ALWAYS AS IDENTITY,
  id uuid NOT NULL,
  at bigint NOT NULL,
  note text NOT NULL,
  PRIMARY KEY (line, no)
);

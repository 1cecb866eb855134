-- The scheme "row": a row for each lock, locked by a transaction that stays open, and the sequence
-- of tokens, which no rollback takes back.
SELECT pg_advisory_xact_lock(x'686f6c64'::bigint); -- one installation at a time, as in tables.sql
CREATE SCHEMA IF NOT EXISTS "holdline";
CREATE TABLE IF NOT EXISTS "holdline".lock_row (name text COLLATE "C" PRIMARY KEY);
CREATE SEQUENCE IF NOT EXISTS "holdline".lock_token AS bigint;

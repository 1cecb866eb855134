-- The scheme "row": a row for each lock, locked by a transaction that stays open, and the sequence
-- of tokens, which no rollback takes back. The schema is there: see tables.sql.
CREATE TABLE IF NOT EXISTS "holdline".lock_row (name text COLLATE "C" PRIMARY KEY);
CREATE SEQUENCE IF NOT EXISTS "holdline".lock_token AS bigint;

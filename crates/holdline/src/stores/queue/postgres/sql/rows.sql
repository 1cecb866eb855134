-- The scheme "row": a row for each lock, locked by an open transaction, and the sequence of tokens,
-- which no rollback takes back. tables.sql creates the schema.
CREATE TABLE IF NOT EXISTS "holdline".lock_row (name text COLLATE "C" PRIMARY KEY);
CREATE SEQUENCE IF NOT EXISTS "holdline".lock_token AS bigint;

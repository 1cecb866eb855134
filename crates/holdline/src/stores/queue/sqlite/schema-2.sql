-- The tables that version 2 added: evictions, with notes that say by whom and why.
CREATE TABLE eviction (
  number INTEGER PRIMARY KEY,  -- rises with every eviction
  name   TEXT    NOT NULL,
  id     BLOB    NOT NULL,
  until  INTEGER NOT NULL,     -- when it is forgotten
  note   TEXT    NOT NULL
);
CREATE INDEX eviction_name ON eviction (name);

-- The tables of a file store. A change here needs a new `user_version`. SQLite stores the text of
-- each statement, comments included.
CREATE TABLE meta (
  one    INTEGER PRIMARY KEY CHECK (one = 1),
  boot   TEXT    NOT NULL,  -- which run of the machine the places are of
  last   INTEGER NOT NULL,  -- the highest token of all lines whose rows were swept out
  cursor TEXT    NOT NULL   -- where the sweep of idle lines goes on
);
CREATE TABLE line (
  name     TEXT    PRIMARY KEY,
  capacity INTEGER NOT NULL,
  last     INTEGER NOT NULL,
  count    INTEGER NOT NULL,
  held     INTEGER NOT NULL,
  front    INTEGER NOT NULL,
  due      INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE place (
  name    TEXT    NOT NULL,
  seq     INTEGER NOT NULL,
  id      BLOB    NOT NULL,
  weight  INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  process INTEGER NOT NULL,  -- which liveness lock is held by its owner
  deep    INTEGER NOT NULL,  -- 1 if 16 or more stood before it when it came
  note    TEXT    NOT NULL,
  PRIMARY KEY (name, seq)
) WITHOUT ROWID;
-- A place that was added when fewer were there stays among the first 16, and is found by searching
-- those; so a short line, as nearly every line is, costs no index.
CREATE INDEX place_id  ON place (id) WHERE deep = 1;
CREATE INDEX place_due ON place (name, expires) WHERE deep = 1;
-- Evictions, with notes that say by whom and why.
CREATE TABLE eviction (
  number INTEGER PRIMARY KEY,  -- rises with every eviction
  name   TEXT    NOT NULL,
  id     BLOB    NOT NULL,
  until  INTEGER NOT NULL,     -- when it is forgotten
  note   TEXT    NOT NULL
);
CREATE INDEX eviction_name ON eviction (name);

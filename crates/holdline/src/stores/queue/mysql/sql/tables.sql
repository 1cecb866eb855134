-- The tables of holdline's locks in MySQL 8.0.29 or later and MariaDB 10.6 or later, version 1.
-- Install all parts of this text together, in a database of your choice.
--
-- Times are microseconds since 1970, in UTC, by the server's live clock. 9223372036854775807 means
-- "never" and "the end of the line". Change rows only through the procedures: rows depend on one
-- another.
SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', lock_wait_timeout = 30;

CREATE TABLE IF NOT EXISTS holdline_schema (
  one     TINYINT NOT NULL PRIMARY KEY,
  version INT     NOT NULL
) ENGINE = InnoDB;

-- The head of each line, and its first place, so that a lock without waiters is one row. The row of
-- an empty line stays, because it has the last token; the row without a name has the highest of the
-- swept lines. `name` is the lock's; or that of a lock of the scheme row or named, after a byte of 1
-- or 2. The holder of such a lock is a line's only place, and `listener` is its session: the N of the
-- GET_LOCK('holdline-session:N') of its connection.
CREATE TABLE IF NOT EXISTS holdline_line (
  name     VARBINARY(513)  NOT NULL PRIMARY KEY,
  capacity BIGINT          NOT NULL DEFAULT 0,
  last     BIGINT          NOT NULL DEFAULT 0,                   -- highest token given or reserved
  places   BIGINT          NOT NULL DEFAULT 0,                   -- the number of places
  held     BIGINT          NOT NULL DEFAULT 0,                   -- weight of the admitted places
  front    BIGINT          NOT NULL DEFAULT 9223372036854775807, -- the first waiting seq
  due      BIGINT          NOT NULL DEFAULT 9223372036854775807, -- no place expires before this
  bar      BIGINT          NOT NULL DEFAULT 0,                   -- tickets are barred until then
  seq      BIGINT          NOT NULL DEFAULT 0,                   -- of the first place, as below
  id       BINARY(16)      NOT NULL DEFAULT '',
  weight   BIGINT          NOT NULL DEFAULT 0,
  expires  BIGINT          NOT NULL DEFAULT 0,
  note     VARBINARY(4096) NOT NULL DEFAULT '',
  listener BIGINT          NOT NULL DEFAULT 0                    -- of the first place, as below
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The places behind the first.
CREATE TABLE IF NOT EXISTS holdline_place (
  line     VARBINARY(513)  NOT NULL,
  seq      BIGINT          NOT NULL,                             -- place number: a holder's token
  id       BINARY(16)      NOT NULL,                             -- the ticket's
  weight   BIGINT          NOT NULL,
  expires  BIGINT          NOT NULL,
  note     VARBINARY(4096) NOT NULL,
  listener BIGINT          NOT NULL,                             -- of its process, or 0 (queue.sql)
  PRIMARY KEY (line, seq),
  KEY place_id (id),
  KEY place_expires (line, expires)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Tickets that left while a request of theirs to enter was still in flight.
CREATE TABLE IF NOT EXISTS holdline_barred (
  line  VARBINARY(513) NOT NULL,
  id    BINARY(16)     NOT NULL,
  until BIGINT         NOT NULL,
  PRIMARY KEY (line, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Places removed by force: the last 8 of each line.
CREATE TABLE IF NOT EXISTS holdline_evicted (
  n     BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
  line  VARBINARY(513)  NOT NULL,
  id    BINARY(16)      NOT NULL,
  note  VARBINARY(4096) NOT NULL,
  until BIGINT          NOT NULL,
  KEY evicted_line (line, n)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO holdline_schema (one, version) VALUES (1, 1);

-- The holders of the locks of the schemes row and named, which a connection holds. The lock itself
-- is the row in holdline_row, locked by an open transaction, or the server's named lock. `last`
-- keeps rising whatever a transaction undoes, because another one writes it.
CREATE TABLE IF NOT EXISTS holdline_row (
  name VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS holdline_session (
  name       VARBINARY(512)  NOT NULL,
  named      BOOLEAN         NOT NULL,            -- whether the scheme is named, or else row
  last       BIGINT          NOT NULL,            -- the holder's token
  id         BINARY(16)      NOT NULL DEFAULT '', -- the holder's ticket
  connection BIGINT          NOT NULL DEFAULT 0,  -- the N of its GET_LOCK('holdline-session:N')
  expires    BIGINT          NOT NULL DEFAULT 0,  -- unless renewed; 0 if not held
  note       VARBINARY(4096) NOT NULL DEFAULT '',
  PRIMARY KEY (name, named)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

DELIMITER //

-- Clears a holder by force, and returns a token higher than its own, or 0 if it is not the holder.
CREATE PROCEDURE IF NOT EXISTS holdline_1_disown(
  p_name VARBINARY(512), p_named BOOLEAN, p_id BINARY(16), p_note VARBINARY(4096), p_kept BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  DECLARE v_token BIGINT DEFAULT 0;
  UPDATE holdline_session SET last = LAST_INSERT_ID(GREATEST(last + 1, v_now)), id = '',
    expires = 0, note = ''
    WHERE name = p_name AND named = p_named AND id = p_id AND expires > v_now;
  IF ROW_COUNT() = 1 THEN
    SET v_token = LAST_INSERT_ID();
    CALL holdline_1_note(p_name, p_id, p_note, v_now, p_kept);
  END IF;
  SELECT v_token;
END //

DELIMITER ;

-- The steps common to all operations, on the rows of one line whose row is locked. Their names and
-- steps are those of the kernel's line.rs.
DELIMITER //

-- Creates a line, unless it exists. Its tokens follow the highest that was swept, so that they rise
-- even if the clock was set back. That is read after the insert, which waits for a sweep of the line.
-- If somebody deleted the line's row, the places that were behind the first are removed: counted as
-- places of the new line, they would let others hold as well.
CREATE PROCEDURE IF NOT EXISTS holdline_1_create(p_line VARBINARY(513))
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_swept, v_lost BIGINT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  START TRANSACTION READ WRITE;
  INSERT INTO holdline_line (name) VALUES (p_line) ON DUPLICATE KEY UPDATE last = last;
  -- Read first: to delete what is not there would lock a gap, and delay other lines.
  SELECT places = 0 AND EXISTS (SELECT 1 FROM holdline_place WHERE line = p_line),
      (SELECT MAX(last) FROM holdline_line WHERE name = '')
    INTO v_lost, v_swept FROM holdline_line WHERE name = p_line;
  IF v_lost THEN
    DELETE FROM holdline_place WHERE line = p_line;
  END IF;
  IF v_swept > 0 THEN
    UPDATE holdline_line SET last = GREATEST(last, v_swept) WHERE name = p_line;
  END IF;
  COMMIT;
END //

-- Removes an existing place. If it is the first, the second moves into the line's row.
CREATE PROCEDURE IF NOT EXISTS holdline_1_remove(p_line VARBINARY(513), p_seq BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_first, v_places, v_weight, v_front, v_next, v_next_weight, v_expires,
    v_listener BIGINT;
  DECLARE v_id BINARY(16);
  DECLARE v_note VARBINARY(4096);
  SELECT seq, places, weight, front INTO v_first, v_places, v_weight, v_front
    FROM holdline_line WHERE name = p_line;
  IF p_seq <> v_first THEN
    SELECT weight INTO v_weight FROM holdline_place WHERE line = p_line AND seq = p_seq;
    DELETE FROM holdline_place WHERE line = p_line AND seq = p_seq;
    UPDATE holdline_line SET places = places - 1, held = held - IF(p_seq < v_front, v_weight, 0)
      WHERE name = p_line;
  ELSEIF v_places > 1 THEN
    SELECT seq, id, weight, expires, note, listener
      INTO v_next, v_id, v_next_weight, v_expires, v_note, v_listener
      FROM holdline_place WHERE line = p_line ORDER BY seq LIMIT 1;
    DELETE FROM holdline_place WHERE line = p_line AND seq = v_next;
    UPDATE holdline_line SET places = places - 1, held = held - IF(p_seq < v_front, v_weight, 0),
      seq = v_next, id = v_id, weight = v_next_weight, expires = v_expires, note = v_note,
      listener = v_listener WHERE name = p_line;
  ELSE
    UPDATE holdline_line SET places = 0, held = 0, due = 9223372036854775807 WHERE name = p_line;
  END IF;
END //

-- Moves the front past all places that now fit, and adds them, except the asker's, to the places to
-- wake: id, seq and listener, 32 bytes each, 200 at most.
CREATE PROCEDURE IF NOT EXISTS holdline_1_advance(
  p_line VARBINARY(513), p_asker VARBINARY(16), INOUT p_woken VARBINARY(6400))
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_capacity, v_places, v_held, v_front, v_first, v_first_weight, v_seq, v_weight,
    v_first_listener, v_listener BIGINT;
  DECLARE v_first_id, v_id BINARY(16);
  SELECT capacity, places, held, front, seq, weight, id, listener
    INTO v_capacity, v_places, v_held, v_front, v_first, v_first_weight, v_first_id,
      v_first_listener
    FROM holdline_line WHERE name = p_line;
  IF v_front < 9223372036854775807 THEN
    walk: LOOP
      SET v_seq = NULL;
      IF v_places > 0 AND v_front <= v_first THEN
        SET v_seq = v_first, v_weight = v_first_weight, v_id = v_first_id,
          v_listener = v_first_listener;
      ELSEIF v_places > 1 THEN
        SELECT seq, weight, id, listener INTO v_seq, v_weight, v_id, v_listener
          FROM holdline_place WHERE line = p_line AND seq >= v_front ORDER BY seq LIMIT 1;
      END IF;
      IF v_seq IS NULL THEN
        SET v_front = 9223372036854775807;
        LEAVE walk;
      END IF;
      IF v_held + v_weight > v_capacity THEN
        SET v_front = v_seq;
        LEAVE walk;
      END IF;
      SET v_held = v_held + v_weight, v_front = v_seq + 1;
      IF v_id <> p_asker AND LENGTH(p_woken) < 6400 THEN
        SET p_woken = CONCAT(p_woken, v_id, UNHEX(LPAD(HEX(v_seq), 16, '0')),
          UNHEX(LPAD(HEX(v_listener), 16, '0')));
      END IF;
    END LOOP;
    UPDATE holdline_line SET held = v_held, front = v_front WHERE name = p_line;
  END IF;
END //

-- Removes all expired places before it admits others, so that no expired place is woken.
CREATE PROCEDURE IF NOT EXISTS holdline_1_lapse(
  p_line VARBINARY(513), p_now BIGINT, p_asker VARBINARY(16), INOUT p_woken VARBINARY(6400))
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_seq, v_first BIGINT;
  walk: LOOP
    SET v_seq = NULL;
    SELECT seq INTO v_seq FROM holdline_line
      WHERE name = p_line AND places > 0 AND expires <= p_now;
    IF v_seq IS NULL THEN
      SELECT seq INTO v_seq FROM holdline_place
        WHERE line = p_line AND expires <= p_now ORDER BY expires LIMIT 1;
    END IF;
    IF v_seq IS NULL THEN
      LEAVE walk;
    END IF;
    CALL holdline_1_remove(p_line, v_seq);
  END LOOP;
  CALL holdline_1_advance(p_line, p_asker, p_woken);
  SELECT MIN(expires) INTO v_first FROM holdline_place WHERE line = p_line;
  UPDATE holdline_line
    SET due = IF(places = 0, 9223372036854775807, LEAST(expires, IFNULL(v_first, expires)))
    WHERE name = p_line;
END //

-- Notifies the processes of these places, except the asker's, of their admission, after the commit.
-- A process with waiters has a connection that waits for a named lock, and holds another, by which
-- it is found; its wait is ended. If that fails, the process polls by itself a little later.
CREATE PROCEDURE IF NOT EXISTS holdline_1_notify(p_woken VARBINARY(6400), p_asker BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_at INT DEFAULT 25;
  DECLARE v_listener, v_connection BIGINT;
  DECLARE v_told BIGINT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
  WHILE v_at < LENGTH(p_woken) DO
    SET v_listener = CONV(HEX(SUBSTRING(p_woken, v_at, 8)), 16, 10), v_at = v_at + 32;
    IF v_listener NOT IN (0, p_asker, v_told) THEN
      SET v_told = v_listener;
      SET v_connection = IS_USED_LOCK(CONCAT('holdline-listener:', v_listener));
      IF v_connection IS NOT NULL THEN
        KILL QUERY v_connection;
      END IF;
    END IF;
  END WHILE;
END //

DELIMITER ;

-- Removes expired places and the rows of lines that nobody has used for p_idle microseconds. Returns
-- the number of lines, and 1 if it has stopped after p_time before it was done. A line's tokens keep
-- rising: the clock has passed the last of them, and the row without a name has the highest. No
-- operation needs the sweep. Each line is its own transaction, so that nobody waits long.
DELIMITER //

CREATE PROCEDURE IF NOT EXISTS holdline_1_sweep(p_idle BIGINT, p_time BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_name VARBINARY(513) DEFAULT '';
  DECLARE v_row VARBINARY(512);
  DECLARE v_due, v_last, v_there BIGINT;
  DECLARE v_swept BIGINT DEFAULT 0;
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  DECLARE v_end BIGINT DEFAULT v_now + p_time;
  DECLARE v_woken VARBINARY(6400);
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  walk: LOOP
    SET v_there = 0, v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    SELECT 1, name INTO v_there, v_name FROM holdline_line
      WHERE name > v_name AND (due <= v_now OR (places = 0 AND last < v_now - p_idle))
      ORDER BY name LIMIT 1;
    IF v_there = 0 OR v_now > v_end THEN
      LEAVE walk;
    END IF;
    START TRANSACTION READ WRITE;
    SELECT due, last INTO v_due, v_last FROM holdline_line WHERE name = v_name FOR UPDATE;
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), v_woken = '';
    IF v_due <= v_now THEN
      CALL holdline_1_lapse(v_name, v_now, '', v_woken);
    END IF;
    DELETE FROM holdline_barred WHERE line = v_name AND until <= v_now;
    DELETE FROM holdline_evicted WHERE line = v_name AND until <= v_now;
    DELETE FROM holdline_line
      WHERE name = v_name AND places = 0 AND bar <= v_now AND last < v_now - p_idle;
    IF ROW_COUNT() = 1 THEN
      SET v_swept = v_swept + 1;
      IF LEFT(v_name, 1) = x'01' THEN
        SELECT name INTO v_row FROM holdline_row
          WHERE name = SUBSTRING(v_name, 2) FOR UPDATE SKIP LOCKED;
        DELETE FROM holdline_row WHERE name = v_row;
        SET v_row = NULL;
      END IF;
      INSERT INTO holdline_line (name, last) VALUES ('', v_last)
        ON DUPLICATE KEY UPDATE last = GREATEST(last, v_last);
    END IF;
    COMMIT;
    IF v_woken <> '' THEN
      CALL holdline_1_notify(v_woken, 0);
    END IF;
  END LOOP;
  SELECT v_swept, v_there;
END //

DELIMITER ;

-- Removes expired places and the rows of lines that nobody has used for p_idle microseconds, and
-- returns the number of lines. A line's tokens keep rising: the clock has passed the last of them.
-- No operation needs the sweep. Each line is its own transaction, so that nobody waits long.
DELIMITER //

CREATE PROCEDURE IF NOT EXISTS holdline_1_sweep(p_idle BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_name VARBINARY(512) DEFAULT '';
  DECLARE v_now, v_due, v_swept, v_there BIGINT DEFAULT 0;
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
    IF v_there = 0 THEN
      LEAVE walk;
    END IF;
    START TRANSACTION READ WRITE;
    SELECT due INTO v_due FROM holdline_line WHERE name = v_name FOR UPDATE;
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), v_woken = '';
    IF v_due <= v_now THEN
      CALL holdline_1_lapse(v_name, v_now, '', v_woken);
    END IF;
    DELETE FROM holdline_barred WHERE line = v_name AND until <= v_now;
    DELETE FROM holdline_evicted WHERE line = v_name AND until <= v_now;
    DELETE FROM holdline_line
      WHERE name = v_name AND places = 0 AND bar <= v_now AND last < v_now - p_idle;
    SET v_swept = v_swept + ROW_COUNT();
    COMMIT;
    IF v_woken <> '' THEN
      CALL holdline_1_notify(v_woken, 0);
    END IF;
  END LOOP;
  SELECT v_swept;
END //

DELIMITER ;

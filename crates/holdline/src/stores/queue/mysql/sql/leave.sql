-- Gives up a place, or removes it by force, in one round trip. Returns one row: 0 if there was no
-- such place; else 1 or, by force, a token higher than all of that place's and no higher than that
-- of any place behind it (the next place's; a new one if it was the last); and the places to wake.
--
-- p_bar: if positive, how long the ticket may not enter, because a request of it may still be in
-- flight. p_note: by whom and why the place is removed by force, which is kept for p_kept, the last 8
-- of a line; or NULL. p_listener: the number of the asker's process, which needs no notice.
DELIMITER //

CREATE PROCEDURE IF NOT EXISTS holdline_1_leave(
  p_line VARBINARY(513), p_id BINARY(16), p_bar BIGINT, p_note VARBINARY(4096), p_kept BIGINT,
  p_listener BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
BEGIN
  DECLARE v_places, v_last, v_due, v_first, v_seq, v_now BIGINT;
  DECLARE v_answer, v_old BIGINT DEFAULT 0;
  DECLARE v_first_id BINARY(16);
  DECLARE v_woken VARBINARY(6400) DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  IF @@time_zone <> '+00:00' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'HOLDLINE the session has another time zone';
  END IF;
  IF p_bar > 0 THEN
    CALL holdline_1_create(p_line);
  END IF;
  START TRANSACTION READ WRITE;
  SELECT places, last, due, seq, id INTO v_places, v_last, v_due, v_first, v_first_id
    FROM holdline_line WHERE name = p_line FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  IF v_now >= v_due THEN
    CALL holdline_1_lapse(p_line, v_now, p_id, v_woken);
    SELECT places, seq, id INTO v_places, v_first, v_first_id
      FROM holdline_line WHERE name = p_line;
  END IF;
  IF v_places > 0 AND v_first_id = p_id THEN
    SET v_seq = v_first;
  ELSEIF v_places > 1 THEN
    SELECT seq INTO v_seq FROM holdline_place WHERE id = p_id AND line = p_line;
  END IF;
  IF v_seq IS NOT NULL THEN
    SET v_answer = 1;
    IF p_note IS NOT NULL THEN
      SELECT IFNULL(MIN(seq), 0) INTO v_answer FROM holdline_place
        WHERE line = p_line AND seq > v_seq;
      IF v_answer = 0 THEN
        SET v_answer = GREATEST(LEAST(v_last, 9223372036854775806) + 1, v_now);
        UPDATE holdline_line SET last = v_answer WHERE name = p_line;
      END IF;
      INSERT INTO holdline_evicted (line, id, note, until)
        VALUES (p_line, p_id, p_note, v_now + p_kept);
      SELECT n INTO v_old FROM holdline_evicted WHERE line = p_line ORDER BY n DESC LIMIT 1 OFFSET 8;
      DELETE FROM holdline_evicted WHERE line = p_line AND (n <= v_old OR until <= v_now);
    END IF;
    CALL holdline_1_remove(p_line, v_seq);
    CALL holdline_1_advance(p_line, '', v_woken);
  END IF;
  IF p_bar > 0 THEN
    DELETE FROM holdline_barred WHERE line = p_line AND until <= v_now;
    INSERT INTO holdline_barred (line, id, until) VALUES (p_line, p_id, v_now + p_bar)
      ON DUPLICATE KEY UPDATE until = v_now + p_bar;
    UPDATE holdline_line SET bar = v_now + p_bar WHERE name = p_line;
  END IF;
  COMMIT;
  IF v_woken <> '' THEN
    CALL holdline_1_notify(v_woken, p_listener);
  END IF;
  SELECT v_answer, v_woken;
END //

DELIMITER ;

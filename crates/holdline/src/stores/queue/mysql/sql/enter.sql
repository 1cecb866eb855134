-- Takes, keeps or renews a place, and returns its standing, in one round trip.
--
-- p_how: -1 to try, -2 to queue, else the seq to keep. Returns one row: an answer (0 admitted, 1
-- waiting, 2 lost, 3 the line has another capacity, 4 the weight was raised, 5 no tokens left), seq
-- (0: no place; after 3 the capacity), the microseconds until a place expires or -1 if others ahead
-- watch for that, and the places to wake.
--
-- p_listener: the number of the asker's process, by which others notify it of its admission.
--
-- The clock is read after the wait for the row.
DELIMITER //

CREATE PROCEDURE IF NOT EXISTS holdline_1_enter(
  p_line VARBINARY(513), p_id BINARY(16), p_weight BIGINT, p_capacity BIGINT, p_lease BIGINT,
  p_wait BIGINT, p_tokens BIGINT, p_least BIGINT, p_how BIGINT, p_note VARBINARY(4096),
  p_listener BIGINT)
MODIFIES SQL DATA SQL SECURITY INVOKER
enter: BEGIN
  DECLARE v_capacity, v_last, v_places, v_held, v_front, v_due, v_bar, v_first, v_now BIGINT;
  DECLARE v_seq, v_weight, v_expires, v_first_weight, v_first_expires BIGINT;
  DECLARE v_spent, v_answer BIGINT DEFAULT 0;
  DECLARE v_more BIGINT DEFAULT GREATEST(p_tokens, 1) - 1;
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

  -- A failed try only reads, and locks nothing: it must not delay the holder's renewal.
  IF p_how = -1 THEN
    SELECT capacity, places, held, front, due, id
      INTO v_capacity, v_places, v_held, v_front, v_due, v_first_id
      FROM holdline_line WHERE name = p_line;
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
    IF v_places > 0 AND v_now < v_due AND v_first_id <> p_id THEN
      IF v_capacity <> p_capacity THEN
        SELECT 3, v_capacity, -1, v_woken;
        LEAVE enter;
      END IF;
      IF v_front < 9223372036854775807 OR v_held + p_weight > v_capacity THEN
        IF v_places > 1 THEN
          SELECT seq INTO v_seq FROM holdline_place WHERE id = p_id AND line = p_line;
        END IF;
        IF v_seq IS NULL THEN
          SELECT 1, 0, IF(v_front = 9223372036854775807, v_due - v_now, -1), v_woken;
          LEAVE enter;
        END IF;
      END IF;
    END IF;
  END IF;

  find: LOOP
    START TRANSACTION READ WRITE;
    SET v_capacity = NULL;
    SELECT capacity, last, places, held, front, due, bar, seq, id, weight, expires
      INTO v_capacity, v_last, v_places, v_held, v_front, v_due, v_bar, v_first, v_first_id,
        v_first_weight, v_first_expires
      FROM holdline_line WHERE name = p_line FOR UPDATE;
    IF v_capacity IS NOT NULL THEN
      LEAVE find;
    END IF;
    ROLLBACK; -- frees the gap lock, with which two inserts would deadlock
    IF p_how >= 0 THEN
      SELECT 2, 0, -1, v_woken;
      LEAVE enter;
    END IF;
    CALL holdline_1_create(p_line);
  END LOOP;
  -- Read the clock after the wait for the row.
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));
  IF v_now >= v_due THEN
    CALL holdline_1_lapse(p_line, v_now, p_id, v_woken);
    SELECT places, held, front, due, seq, id, weight, expires
      INTO v_places, v_held, v_front, v_due, v_first, v_first_id, v_first_weight, v_first_expires
      FROM holdline_line WHERE name = p_line;
  END IF;

  IF v_bar > 0 AND v_bar <= v_now THEN
    DELETE FROM holdline_barred WHERE line = p_line AND until <= v_now;
    UPDATE holdline_line SET bar = 0 WHERE name = p_line;
  END IF;

  SET v_seq = NULL;
  IF v_places > 0 AND v_first_id = p_id THEN
    SET v_seq = v_first, v_weight = v_first_weight, v_expires = v_first_expires;
  ELSEIF v_places > 1 THEN
    SELECT seq, weight, expires INTO v_seq, v_weight, v_expires
      FROM holdline_place WHERE id = p_id AND line = p_line;
  END IF;

  IF v_places > 0 AND v_capacity <> p_capacity THEN
    SET v_answer = 3, v_seq = v_capacity;
  ELSEIF v_seq IS NOT NULL THEN -- keep
    IF p_how >= 0 AND p_how <> v_seq THEN
      SET v_answer = 2;
    ELSEIF p_weight > v_weight THEN
      SET v_answer = 4;
    ELSEIF p_least > 9223372036854775806 - v_more THEN
      SET v_answer = 5;
    ELSE
      SET v_spent = IF(p_least > 0, p_least + v_more, 0);
      SET v_answer = IF(v_seq < v_front, 0, 1);
      -- Never shorten it: a late renewal must not undo a longer one.
      SET v_expires = GREATEST(v_expires, v_now + IF(v_answer = 0, p_lease, p_wait));
      IF v_seq = v_first THEN
        UPDATE holdline_line SET weight = p_weight, expires = v_expires, note = p_note
          WHERE name = p_line;
      ELSE
        UPDATE holdline_place SET weight = p_weight, expires = v_expires, note = p_note
          WHERE line = p_line AND seq = v_seq;
      END IF;
      IF v_spent > v_last OR (v_answer = 0 AND v_weight > p_weight) THEN
        UPDATE holdline_line SET last = GREATEST(last, v_spent),
          held = held - IF(v_answer = 0, v_weight - p_weight, 0) WHERE name = p_line;
      END IF;
      IF v_weight > p_weight THEN
        CALL holdline_1_advance(p_line, p_id, v_woken);
        SELECT front INTO v_front FROM holdline_line WHERE name = p_line;
        IF v_answer = 1 AND v_seq < v_front THEN
          SET v_answer = 0, v_expires = GREATEST(v_expires, v_now + p_lease);
          UPDATE holdline_line SET expires = v_expires WHERE name = p_line AND seq = v_seq;
          UPDATE holdline_place SET expires = v_expires WHERE line = p_line AND seq = v_seq;
        END IF;
      END IF;
    END IF;
  ELSEIF p_how >= 0 THEN
    SET v_answer = 2;
  ELSE -- join
    IF v_bar > v_now THEN
      SELECT until INTO v_seq FROM holdline_barred
        WHERE line = p_line AND id = p_id AND until > v_now;
    END IF;
    SET v_answer = IF(v_front = 9223372036854775807 AND v_held + p_weight <= p_capacity, 0, 1);
    IF v_seq IS NOT NULL THEN
      SET v_answer = 2;
    ELSEIF v_answer = 1 AND p_how = -1 THEN
      SET v_seq = 0;
    ELSEIF GREATEST(v_last, v_now, p_least - 1) >= 9223372036854775806 - v_more THEN
      SET v_answer = 5;
    ELSE
      SET v_seq = GREATEST(v_last + 1, v_now, p_least);
      SET v_expires = v_now + IF(v_answer = 0, p_lease, p_wait);
      SET v_due = LEAST(v_due, v_expires);
      IF v_answer = 0 THEN
        SET v_held = v_held + p_weight;
      ELSE
        SET v_front = LEAST(v_front, v_seq);
      END IF;
      IF v_places = 0 THEN
        UPDATE holdline_line SET capacity = p_capacity, last = v_seq + v_more, places = 1,
          held = v_held, front = v_front, due = v_due, seq = v_seq, id = p_id, weight = p_weight,
          expires = v_expires, note = p_note WHERE name = p_line;
      ELSE
        INSERT INTO holdline_place (line, seq, id, weight, expires, note, listener)
          VALUES (p_line, v_seq, p_id, p_weight, v_expires, p_note, p_listener);
        UPDATE holdline_line SET last = v_seq + v_more, places = v_places + 1, held = v_held,
          front = v_front, due = v_due WHERE name = p_line;
      END IF;
    END IF;
  END IF;
  COMMIT;
  IF v_woken <> '' THEN
    CALL holdline_1_notify(v_woken, p_listener);
  END IF;
  SELECT v_answer, v_seq,
    IF(v_front = IF(v_seq = 0, 9223372036854775807, v_seq), GREATEST(v_due - v_now, 0), -1),
    v_woken;
END //

DELIMITER ;

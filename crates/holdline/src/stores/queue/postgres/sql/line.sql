-- The functions of the lease table. Their names and steps are those of the kernel's line.rs. Each
-- operation is one call. It locks the head before it reads the clock, so that a wait for the lock
-- shortens no lease. 9223372036854775807 means "never" and "behind every place".

CREATE OR REPLACE FUNCTION "holdline".version() RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT 1 $$;

-- The current time, not the start of the transaction.
CREATE OR REPLACE FUNCTION "holdline".clock() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Limits how long the operation waits for a locked row, because other calls wait behind it on the
-- same connection. A batch of calls has set a shorter limit.
CREATE OR REPLACE FUNCTION "holdline".limit_waits() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('lock_timeout',
    coalesce(nullif(current_setting('holdline.lock_timeout', true), ''), '800'), true);
END $$;

-- Locks a line, and creates it if in_create is set. Null if there is no line. The tokens of a new
-- line follow the highest that was swept, so that they rise even if the clock was set back. The
-- update reads it after the insert, which waits for a sweep of this line.
CREATE OR REPLACE FUNCTION "holdline".lock_line(in_name text, in_create boolean)
RETURNS "holdline".line LANGUAGE plpgsql AS $$
DECLARE h "holdline".line;
BEGIN
  LOOP
    SELECT * INTO h FROM "holdline".line l WHERE l.name = in_name FOR NO KEY UPDATE;
    IF FOUND OR NOT in_create THEN RETURN h; END IF;
    INSERT INTO "holdline".line (name) VALUES (in_name) ON CONFLICT (name) DO NOTHING;
    UPDATE "holdline".line l SET last = swept.last FROM "holdline".line swept
      WHERE l.name = in_name AND swept.name = '' AND l.last < swept.last;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION "holdline".save(h "holdline".line) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE "holdline".line l
    SET capacity = h.capacity, last = h.last, count = h.count, held = h.held, front = h.front,
        due = h.due, barred = h.barred, id = h.id, seq = h.seq, weight = h.weight,
        expires = h.expires, channel = h.channel, note = h.note
    WHERE l.name = h.name;
END $$;

-- The place of this ticket, or null.
CREATE OR REPLACE FUNCTION "holdline".by_id(h "holdline".line, in_id uuid)
RETURNS "holdline".place LANGUAGE plpgsql AS $$
DECLARE p "holdline".place;
BEGIN
  IF h.count > 0 AND h.id = in_id THEN
    p := (h.no, h.seq, h.id, h.weight, h.expires, h.channel, h.note);
  ELSIF h.count > 1 THEN
    SELECT * INTO p FROM "holdline".place o WHERE o.line = h.no AND o.id = in_id;
  END IF;
  RETURN p;
END $$;

-- The first place at or after this number, or null.
CREATE OR REPLACE FUNCTION "holdline".first_from(h "holdline".line, in_seq bigint)
RETURNS "holdline".place LANGUAGE plpgsql AS $$
DECLARE p "holdline".place;
BEGIN
  IF h.count > 0 AND h.seq >= in_seq THEN
    p := (h.no, h.seq, h.id, h.weight, h.expires, h.channel, h.note);
  ELSIF h.count > 1 THEN
    SELECT * INTO p FROM "holdline".place o WHERE o.line = h.no AND o.seq >= in_seq
      ORDER BY o.seq LIMIT 1;
  END IF;
  RETURN p;
END $$;

-- Writes an existing place, the first into the head.
CREATE OR REPLACE FUNCTION "holdline".put(h "holdline".line, p "holdline".place)
RETURNS "holdline".line LANGUAGE plpgsql AS $$
BEGIN
  IF p.seq = h.seq THEN
    h.weight := p.weight; h.expires := p.expires; h.channel := p.channel; h.note := p.note;
  ELSE
    -- A concurrent renewal, which does not lock the head, may have extended it.
    UPDATE "holdline".place o
      SET weight = p.weight, expires = greatest(o.expires, p.expires), channel = p.channel,
          note = p.note
      WHERE o.line = h.no AND o.seq = p.seq;
  END IF;
  RETURN h;
END $$;

-- Removes an existing place. If it is the first, the second becomes the first.
CREATE OR REPLACE FUNCTION "holdline".remove(h "holdline".line, p "holdline".place)
RETURNS "holdline".line LANGUAGE plpgsql AS $$
DECLARE next "holdline".place;
BEGIN
  h.count := h.count - 1;
  IF p.seq < h.front THEN h.held := h.held - p.weight; END IF;
  IF p.seq <> h.seq THEN
    DELETE FROM "holdline".place o WHERE o.line = h.no AND o.seq = p.seq;
  ELSE
    IF h.count > 0 THEN
      SELECT * INTO next FROM "holdline".place o WHERE o.line = h.no AND o.seq > p.seq
        ORDER BY o.seq LIMIT 1;
      DELETE FROM "holdline".place o WHERE o.line = h.no AND o.seq = next.seq RETURNING * INTO next;
    END IF;
    h.id := next.id; h.seq := next.seq; h.weight := next.weight; h.expires := next.expires;
    h.channel := next.channel; h.note := next.note;
  END IF;
  IF h.count = 0 THEN h.due := 9223372036854775807; END IF;
  RETURN h;
END $$;

-- Whether the server has room for a notice: without room the whole call would fail at its commit.
-- The other process then learns of the change when it asks again, within seconds.
CREATE OR REPLACE FUNCTION "holdline".room_for_notice() RETURNS boolean LANGUAGE sql VOLATILE
AS $$ SELECT pg_notification_queue_usage() < 0.99 $$;

-- Moves the front past the places that now fit, and notifies their processes, except for the
-- asker's place, which is in its reply.
CREATE OR REPLACE FUNCTION "holdline".advance(h "holdline".line, asker uuid)
RETURNS "holdline".line LANGUAGE plpgsql AS $$
DECLARE next "holdline".place;
BEGIN
  WHILE h.front <> 9223372036854775807 LOOP
    next := "holdline".first_from(h, h.front);
    IF next.seq IS NULL THEN
      h.front := 9223372036854775807;
    ELSIF h.held + next.weight > h.capacity THEN
      h.front := next.seq;
      RETURN h;
    ELSE
      h.held := h.held + next.weight;
      h.front := next.seq + 1;
      IF next.id IS DISTINCT FROM asker AND next.channel <> '' AND "holdline".room_for_notice() THEN
        PERFORM pg_notify(next.channel, 'w' || next.id || next.seq);
      END IF;
    END IF;
  END LOOP;
  RETURN h;
END $$;

-- Removes all expired places before it admits others, so that no expired place is notified.
CREATE OR REPLACE FUNCTION "holdline".lapse(h "holdline".line, now bigint, asker uuid)
RETURNS "holdline".line LANGUAGE plpgsql AS $$
DECLARE gone bigint; weight bigint;
BEGIN
  IF h.count > 1 THEN
    WITH lapsed AS (
      DELETE FROM "holdline".place o WHERE o.line = h.no AND o.expires <= now
        RETURNING o.seq, o.weight
    )
    SELECT count(*), coalesce(sum(l.weight) FILTER (WHERE l.seq < h.front), 0)
      INTO gone, weight FROM lapsed l;
    h.count := h.count - gone; h.held := h.held - weight;
  END IF;
  IF h.expires <= now THEN
    h := "holdline".remove(h, "holdline".by_id(h, h.id));
  END IF;
  h := "holdline".advance(h, asker);
  h.due := coalesce(h.expires, 9223372036854775807); -- null if the line is empty
  IF h.count > 1 THEN
    SELECT least(h.due, min(o.expires)) INTO h.due FROM "holdline".place o WHERE o.line = h.no;
  END IF;
  RETURN h;
END $$;

-- The standing that enter returns. Only the first waiter asks again when a place may have expired.
CREATE OR REPLACE FUNCTION "holdline".standing(h "holdline".line, s bigint, now bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
  IF s < h.front THEN RETURN ARRAY[0, s]; END IF;
  RETURN ARRAY[1, CASE WHEN s = 9223372036854775807 THEN 0 ELSE s END,
    CASE WHEN s = h.front AND h.count > 0 THEN greatest(0, h.due - now) ELSE -1 END,
    now];
END $$;

-- Takes, keeps or renews a place. in_how: -1 to try, -2 to queue, else the place to keep; in_lease
-- and in_wait: how long it holds, or waits, without a renewal, in microseconds. Returns {0, seq}
-- admitted; {1, seq or 0, time until a place expires or -1, the current time} waiting; {2} lost;
-- {3, capacity} the line has another capacity; {4} the weight was raised; {5} no tokens left.
CREATE OR REPLACE FUNCTION "holdline".enter(
  in_name text, in_id uuid, in_weight bigint, in_capacity bigint, in_lease bigint, in_wait bigint,
  in_tokens bigint, in_min bigint, in_how bigint, in_channel text, in_note text
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  most CONSTANT bigint := 9223372036854775806;
  more CONSTANT bigint := greatest(in_tokens, 1) - 1;
  h "holdline".line; p "holdline".place; now bigint; s bigint; e bigint; lighter bigint;
  admitted boolean; answer bigint[]; changed boolean := false;
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  PERFORM "holdline".limit_waits();
  IF in_how < 0 AND in_min <= most / 2 THEN
    -- The common case, an empty line, takes one statement. If that waited, its time is too early.
    now := "holdline".clock();
    UPDATE "holdline".line l
      SET capacity = in_capacity, last = greatest(l.last + 1, now, in_min) + more, count = 1,
          held = in_weight, due = now + in_lease, id = in_id, weight = in_weight,
          seq = greatest(l.last + 1, now, in_min), expires = now + in_lease, channel = in_channel,
          note = in_note
      WHERE l.name = in_name AND l.count = 0 AND l.last <= most / 2 AND l.barred <= now
      RETURNING l.seq INTO s;
    IF FOUND THEN
      e := "holdline".clock();
      IF e > now + 1000 THEN
        UPDATE "holdline".line l SET expires = e + in_lease, due = e + in_lease
          WHERE l.name = in_name;
      END IF;
      RETURN ARRAY[0, s];
    END IF;
  END IF;
  IF in_how = -1 THEN
    -- A try that fails neither locks nor writes anything.
    SELECT * INTO h FROM "holdline".line l WHERE l.name = in_name AND l.count > 0 AND l.id <> in_id
      AND NOT EXISTS (SELECT FROM "holdline".place o WHERE o.line = l.no AND o.id = in_id);
    now := "holdline".clock();
    IF now < h.due THEN
      IF h.capacity <> in_capacity THEN RETURN ARRAY[3, h.capacity]; END IF;
      IF h.front <> 9223372036854775807 OR h.held + in_weight > h.capacity THEN
        RETURN "holdline".standing(h, 9223372036854775807, now);
      END IF;
    END IF;
  END IF;
  IF in_how >= 0 AND in_min = 0 THEN
    -- A place behind the first is kept without locking the head, so that waiters do not delay the
    -- holder. If it is being admitted, a notice says so.
    SELECT * INTO h FROM "holdline".line l WHERE l.name = in_name;
    IF h.seq <> in_how AND h.capacity = in_capacity AND "holdline".clock() < h.due THEN
      SELECT * INTO p FROM "holdline".place o WHERE o.line = h.no AND o.seq = in_how
        AND o.id = in_id AND o.weight = in_weight AND o.expires > "holdline".clock()
        FOR NO KEY UPDATE;
      IF FOUND THEN
        now := "holdline".clock();
        e := now + CASE WHEN in_how < h.front THEN in_lease ELSE in_wait END;
        UPDATE "holdline".place o
          SET expires = greatest(p.expires, e), channel = in_channel, note = in_note
          WHERE o.line = h.no AND o.seq = in_how;
        RETURN "holdline".standing(h, in_how, now);
      END IF;
    END IF;
  END IF;

  h := "holdline".lock_line(in_name, in_how < 0);
  IF h.no IS NULL THEN RETURN ARRAY[2]; END IF;
  now := "holdline".clock();
  IF now >= h.due THEN
    h := "holdline".lapse(h, now, in_id);
    changed := true;
  END IF;
  IF h.count > 0 THEN p := "holdline".by_id(h, in_id); END IF;
  IF h.count > 0 AND h.capacity <> in_capacity THEN
    answer := ARRAY[3, h.capacity];

  ELSIF p.seq IS NULL THEN
    admitted := h.front = 9223372036854775807 AND h.held + in_weight <= in_capacity;
    s := greatest(h.last, in_min - 1, now - 1);
    IF in_how >= 0 THEN
      answer := ARRAY[2];
    ELSIF in_how = -1 AND NOT admitted THEN
      answer := "holdline".standing(h, 9223372036854775807, now);
    ELSIF now < h.barred AND EXISTS (
      SELECT FROM "holdline".barred b WHERE b.line = h.no AND b.id = in_id AND b.until > now
    ) THEN
      answer := ARRAY[2];
    ELSIF s >= most - more THEN
      answer := ARRAY[5];
    ELSE
      s := s + 1;
      e := now + CASE WHEN admitted THEN in_lease ELSE in_wait END;
      IF h.count = 0 THEN
        h.id := in_id; h.seq := s; h.weight := in_weight; h.expires := e;
        h.channel := in_channel; h.note := in_note;
      ELSE
        INSERT INTO "holdline".place VALUES (h.no, s, in_id, in_weight, e, in_channel, in_note);
      END IF;
      h.capacity := in_capacity; h.last := s + more; h.count := h.count + 1;
      h.due := least(h.due, e);
      IF admitted THEN h.held := h.held + in_weight; ELSE h.front := least(h.front, s); END IF;
      answer := "holdline".standing(h, s, now);
      changed := true;
    END IF;

  ELSIF in_how >= 0 AND p.seq <> in_how THEN
    answer := ARRAY[2];
  ELSIF in_weight > p.weight THEN
    answer := ARRAY[4];
  ELSIF in_min > most - more THEN
    answer := ARRAY[5];
  ELSE
    IF in_min > 0 THEN h.last := greatest(h.last, in_min + more); END IF;
    admitted := p.seq < h.front;
    lighter := p.weight - in_weight;
    p.weight := in_weight; p.channel := in_channel; p.note := in_note;
    -- Never shorten it: a late renewal must not undo a longer one.
    p.expires := greatest(p.expires, now + CASE WHEN admitted THEN in_lease ELSE in_wait END);
    h := "holdline".put(h, p);
    h.due := least(h.due, p.expires);
    IF lighter > 0 THEN
      IF admitted THEN h.held := h.held - lighter; END IF;
      h := "holdline".advance(h, in_id);
      IF NOT admitted AND p.seq < h.front THEN
        p.expires := greatest(p.expires, now + in_lease);
        h := "holdline".put(h, p);
      END IF;
    END IF;
    answer := "holdline".standing(h, p.seq, now);
    changed := true;
  END IF;
  IF changed THEN PERFORM "holdline".save(h); END IF;
  RETURN answer;
END $$;

-- Gives up a place. Returns whether there was one. in_bar: if not 0, how long the ticket may not
-- enter, because a request of it may still be in flight. The commit is not waited for. If a crash
-- undoes it, the place comes back until its lease ends, and whatever depended on its end is undone
-- as well, unless a later commit was waited for; but then this one was committed too.
CREATE OR REPLACE FUNCTION "holdline".leave(in_name text, in_id uuid, in_bar bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE h "holdline".line; p "holdline".place; now bigint; there boolean; changed boolean;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM "holdline".limit_waits();
  IF in_bar = 0 THEN
    -- The common case, the only place in its line, takes one statement.
    UPDATE "holdline".line l
      SET count = 0, held = 0, due = 9223372036854775807, id = NULL, seq = NULL, weight = NULL,
          expires = NULL, channel = NULL, note = NULL
      WHERE l.name = in_name AND l.id = in_id AND l.count = 1 AND "holdline".clock() < l.due;
    IF FOUND THEN RETURN true; END IF;
  END IF;
  h := "holdline".lock_line(in_name, in_bar > 0);
  IF h.no IS NULL THEN RETURN false; END IF;
  now := "holdline".clock();
  IF in_bar > 0 THEN
    DELETE FROM "holdline".barred b WHERE b.line = h.no AND b.until <= now;
    INSERT INTO "holdline".barred VALUES (h.no, in_id, now + in_bar)
      ON CONFLICT (line, id) DO UPDATE SET until = excluded.until;
    h.barred := greatest(h.barred, now + in_bar);
  END IF;
  changed := in_bar > 0 OR now >= h.due;
  IF now >= h.due THEN h := "holdline".lapse(h, now, in_id); END IF;
  p := "holdline".by_id(h, in_id);
  there := p.seq IS NOT NULL;
  IF there THEN h := "holdline".advance("holdline".remove(h, p), NULL); END IF;
  IF there OR changed THEN PERFORM "holdline".save(h); END IF;
  RETURN there;
END $$;

-- Removes a place by force. Returns a token that is higher than all of its own, and no higher than
-- that of any place behind it: the next place's, or a new one if it was the last. Null if there is
-- no such place.
CREATE OR REPLACE FUNCTION "holdline".evict(in_name text, in_id uuid, in_note text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE h "holdline".line; p "holdline".place; now bigint; token bigint;
BEGIN
  PERFORM set_config('synchronous_commit', 'on', true)
    WHERE current_setting('synchronous_commit') = 'off';
  PERFORM "holdline".limit_waits();
  h := "holdline".lock_line(in_name, false);
  IF h.no IS NULL THEN RETURN NULL; END IF;
  now := "holdline".clock();
  IF now >= h.due THEN h := "holdline".lapse(h, now, in_id); END IF;
  p := "holdline".by_id(h, in_id);
  IF p.seq IS NOT NULL THEN
    token := ("holdline".first_from(h, p.seq + 1)).seq;
    h := "holdline".advance("holdline".remove(h, p), NULL);
    IF token IS NULL THEN
      token := least(greatest(h.last, now - 1), 9223372036854775805) + 1;
      h.last := token;
    END IF;
    DELETE FROM "holdline".eviction e WHERE e.line = h.no AND (e.at <= now - 60000000 OR e.no IN (
      SELECT o.no FROM "holdline".eviction o WHERE o.line = h.no ORDER BY o.no DESC OFFSET 7));
    INSERT INTO "holdline".eviction (line, id, at, note) VALUES (h.no, in_id, now, in_note);
    IF p.channel <> '' AND "holdline".room_for_notice() THEN
      PERFORM pg_notify(p.channel, 'a' || in_id);
    END IF;
  END IF;
  PERFORM "holdline".save(h);
  RETURN token;
END $$;

-- The unexpired places, front first, then the evictions, oldest first.
CREATE OR REPLACE FUNCTION "holdline".look(in_name text)
RETURNS TABLE (evicted boolean, seq bigint, id uuid, weight bigint, rest bigint, capacity bigint,
  note text) LANGUAGE sql VOLATILE AS $$
  SELECT false, p.seq, p.id, p.weight, p.expires - "holdline".clock(), l.capacity, p.note
    FROM "holdline".line l CROSS JOIN LATERAL (
      SELECT l.seq, l.id, l.weight, l.expires, l.note WHERE l.count > 0
      UNION ALL
      SELECT o.seq, o.id, o.weight, o.expires, o.note FROM "holdline".place o WHERE o.line = l.no
    ) p WHERE l.name = in_name AND p.expires > "holdline".clock()
  UNION ALL
  SELECT true, e.no, e.id, 0, 0, 0, e.note
    FROM "holdline".line l JOIN "holdline".eviction e ON e.line = l.no
    WHERE l.name = in_name AND e.at > "holdline".clock() - 60000000
  ORDER BY 1, 2
$$;

-- The names of the non-empty lines with this prefix, in order.
CREATE OR REPLACE FUNCTION "holdline".list(in_prefix text)
RETURNS SETOF text LANGUAGE sql VOLATILE AS $$
  SELECT l.name FROM "holdline".line l
    WHERE l.name >= in_prefix AND starts_with(l.name, in_prefix) AND l.count > 0
      AND (l.expires > "holdline".clock() OR EXISTS (SELECT FROM "holdline".place o
        WHERE o.line = l.no AND o.expires > "holdline".clock()))
    ORDER BY l.name
$$;

-- Removes what no lock needs: expired places, and lines that have been empty for in_idle
-- microseconds and whose tokens the clock has passed. The line of the empty name keeps the highest
-- of these tokens. Nothing depends on it. Returns the number of removed lines.
CREATE OR REPLACE FUNCTION "holdline".sweep(in_idle bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE h "holdline".line; now bigint; gone bigint;
BEGIN
  FOR h IN SELECT * FROM "holdline".line l
    WHERE l.due <= "holdline".clock() LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED
  LOOP
    PERFORM "holdline".save("holdline".lapse(h, "holdline".clock(), NULL));
  END LOOP;
  now := "holdline".clock();
  DELETE FROM "holdline".eviction e WHERE e.at <= now - 60000000;
  DELETE FROM "holdline".barred b WHERE b.until <= now;
  WITH idle AS (
    SELECT l.name FROM "holdline".line l
      WHERE l.name <> '' AND l.count = 0 AND l.barred <= now AND l.last <= now - in_idle
      FOR UPDATE SKIP LOCKED
  ), swept AS (
    DELETE FROM "holdline".line l USING idle WHERE l.name = idle.name RETURNING l.last
  ), kept AS (
    INSERT INTO "holdline".line AS l (name, last)
      SELECT '', max(s.last) FROM swept s HAVING count(*) > 0
      ON CONFLICT (name) DO UPDATE SET last = greatest(l.last, excluded.last)
  )
  SELECT count(*) INTO gone FROM swept;
  RETURN gone;
END $$;

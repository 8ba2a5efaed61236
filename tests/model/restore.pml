/* One shard of a table that is restored from a backup, beside a writer of the old table.

   The backup has the WAL up to position 2, whose row is in no generation. After it, the old writer
   went on: by claims of its own, so that its epoch is above the backup's (`went on`), and by
   entries. It stalls by not being scheduled. It does what pylance 14.0.2 was seen to do: put at the
   position after its last; where that is taken, compare epochs, and be fenced or try the next one;
   compare epochs before it updates the manifest, and go on where the stored one is lower than its
   own.

   The restore does what memwal/jobs/restore/apply.py and plan.py do: the manifest with the new
   epoch, a sentinel, rows, the manifest that starts after them. It may be killed once and run again.
   The old shard was moved away before. A leap is taken to be more than the old writer ever puts or
   claims.

   Then a new writer claims the shard, replays it and flushes.

   Properties: nothing that the old writer puts is in the restored table; its manifest never becomes
   the latest of the restored table, so it is told when it flushes; what the backup has is replayed.

   The switches, each an unsafe variant: NEXT_EPOCH (the epoch after the backup's, not a leap),
   NO_POSITION_LEAP, KEPT_EPOCH (none is raised). */

#define OLD_LAST 5
#define LAST 20
#define EPOCH_LEAP 10

/* What is stored at a position. */
#define NONE 0
#define OLD_ROW 1
#define KEPT_ROW 2
#define SENTINEL 3
#define NEW_ROW 4
byte wal[LAST + 2];

/* The latest manifest: whose generations it has, its epoch, and what it covers. */
bool is_there;
bool is_old;
byte epoch;
byte replay;

byte old_epoch;
byte old_tip;
bool restored;
bool begun;
/* The rerun began after a kill. */
bool killed;

inline highest(p)
{
  p = LAST;
  do
  :: p > 0 && wal[p] == NONE -> p--
  :: else -> break
  od
}

proctype Old()
{
  byte position = old_tip + 1;

  do
  :: atomic { position <= OLD_LAST && wal[position] == NONE ->
       wal[position] = OLD_ROW;
       printf("old: put at position %d is acknowledged\n", position);
       position++ }
  :: atomic { position <= OLD_LAST && wal[position] != NONE ->
       if
       :: is_there && epoch > old_epoch ->
          printf("old: position %d is taken, and the epoch is %d: fenced\n", position, epoch);
          break
       :: else -> position++
       fi }
  :: atomic { is_there && begun ->
       if
       :: epoch > old_epoch ->
          printf("old: flush refused, the epoch is %d\n", epoch);
          break
       :: else ->
          is_old = true;
          epoch = old_epoch;
          replay = position - 1;
          printf("old: its manifest is the latest, with epoch %d\n", epoch);
          assert(!restored)
       fi }
  :: break
  od
}

proctype Restore()
{
  byte known, base, p;

again:
  atomic {
    begun = true;
    /* What is found: the backup's epoch is 1, its WAL ends at 2. */
    highest(p);
    base = (p > 2 -> p : 2);
    known = (is_there && epoch > 1 -> epoch : 1);
#ifdef NO_POSITION_LEAP
    base = base + 1
#else
    base = (base < OLD_LAST -> OLD_LAST + 1 : base + 2)
#endif
  };
  d_step {
    is_there = true;
    is_old = false;
#ifdef KEPT_EPOCH
    epoch = known;
#else
#ifdef NEXT_EPOCH
    epoch = known + 1;
#else
    epoch = known + EPOCH_LEAP;
#endif
#endif
    known = epoch;
    replay = base;
    printf("restore: claimed epoch %d; its manifest covers up to %d\n", epoch, replay)
  };
  if
  :: atomic { wal[base] == NONE -> wal[base] = SENTINEL;
       printf("restore: sentinel at position %d\n", base) }
  :: wal[base] != NONE -> goto again
  fi;
  if
  :: atomic { !killed -> killed = true; printf("restore: killed, and run again\n") };
     goto again
  :: true
  fi;
  if
  :: atomic { wal[base + 1] == NONE -> wal[base + 1] = KEPT_ROW;
       printf("restore: the row at position %d\n", base + 1) }
  :: wal[base + 1] != NONE -> goto again
  fi;
  atomic {
    if
    :: epoch != known || is_old -> p = 0; goto again
    :: else
    fi;
    replay = base;
    restored = true;
    printf("restore: done; its manifest covers up to %d\n", replay)
  }
}

proctype New()
{
  byte p, kept;

  atomic { restored -> epoch++; printf("new: claimed epoch %d\n", epoch) };
  /* The tip: above the highest entry; an empty WAL begins at 1, whatever is covered. */
  atomic {
    highest(p);
    p++;
    wal[p] = SENTINEL;
    printf("new: sentinel at position %d\n", p)
  };
  p = replay + 1;
  do
  :: atomic { wal[p] == NONE -> break }
  :: atomic { wal[p] != NONE ->
       if
       :: wal[p] == OLD_ROW ->
          printf("new: replayed position %d, a row of the old table\n", p);
          assert(false)
       :: wal[p] == KEPT_ROW -> kept++
       :: else
       fi;
       p++ }
  od;
  atomic {
    printf("new: replayed %d rows of the backup\n", kept);
    assert(kept == 1)
  };
  /* It puts at the tip of what it replayed. */
  d_step {
    wal[p] = NEW_ROW;
    printf("new: put at position %d is acknowledged\n", p);
    assert(p > replay)
  }
}

init {
  atomic {
    /* The old life after the backup. */
    if
    :: old_epoch = 1
    :: old_epoch = 2; printf("init: the old table went on to epoch 2\n")
    :: old_epoch = 3; printf("init: the old table went on to epoch 3\n")
    fi;
    if
    :: old_tip = 2
    :: old_tip = 3; printf("init: its WAL went on to position 3\n")
    :: old_tip = 4; printf("init: its WAL went on to position 4\n")
    fi;
    run Old();
    run Restore();
    run New()
  }
}

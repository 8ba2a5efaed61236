/* Writers of one shard, one of which may stall anywhere, beside WAL garbage collection.

   Writers do what pylance 14.0.2 was seen to do: claim an epoch, write a sentinel at the tip, replay
   what the claimed manifest does not cover, put entries, flush. A writer stalls by not being
   scheduled; it dies by being left behind at the end. The collector does what
   memwal/jobs/garbage/kinds/wal_entry.py decides (invariant 7), with no grace at all: fencing must
   not hang on a clock. Generations are taken to be merged and deleted as soon as they are flushed,
   which is the worst case for the WAL.

   The collector reads what is as small as a sentinel. Where that shows a sentinel of every epoch
   up to the manifest's, the rest is rows, and by their places it tells whose; else it reads every
   entry. What a row's generation is it tells by the manifest alone. A sentinel of another size
   (`overlooked`) may be anywhere.

   Property: an acknowledged row is in a generation, or where the next replay finds it.

   The switches, each an unsafe variant: DELETE_NEWEST_SENTINEL, DELETE_SENTINELS, DELETE_HIGHEST,
   DELETE_UNCOVERED, DELETE_UNSEEN, DELETE_BELOW_CLAIM, SENTINEL_ENDS_CLAIM, UNLOCATED,
   IN_ORDER, BY_NEAREST (the collector); EMPTY_UNCOVERED (an erasure); NO_SENTINEL, NO_EPOCH_CHECK, NO_PUT_IF_ABSENT (the writers). */

#ifndef WRITERS
#define WRITERS 3
#endif
#ifndef LAST
#define LAST 7
#endif
#ifndef COLLECTIONS
#define COLLECTIONS 2
#endif

#ifdef NO_PUT_IF_ABSENT
#define FREE(p) true
#else
#define FREE(p) (writer_of[p] == 0)
#endif
#define BIT(p) (1 << (p))
#define ALL (BIT(LAST + 1) - 1)
#define IS_SENTINEL(p) ((sentinels & BIT(p)) != 0)

/* The gates of the collector; each switch opens one. */
#ifdef DELETE_UNCOVERED
#define COVERED(p) true
#else
#define COVERED(p) (p <= its_replay)
#endif
#ifdef DELETE_UNSEEN
#define SEEN(p) true
#else
#define SEEN(p) (p <= its_seen)
#endif
#ifdef DELETE_HIGHEST
#define NOT_HIGHEST(p) true
#else
#define NOT_HIGHEST(p) (p != highest)
#endif
#ifdef DELETE_SENTINELS
#define NO_FENCE(p) true
#else
#ifdef DELETE_NEWEST_SENTINEL
#define NO_FENCE(p) (!IS_SENTINEL(p) || p == newest)
#else
/* One above a newer epoch's, too: that epoch's writer may put next where it stands. */
#define NO_FENCE(p) (!SEEN_AS_SENTINEL(p))
#endif
#endif
#ifdef EMPTY_UNCOVERED
#define EMPTIABLE(p) true
#else
#define EMPTIABLE(p) (p <= replay)
#endif
#ifdef DELETE_BELOW_CLAIM
#define HELD(p) false
#else
#define HELD(p) (held & BIT(p))
#endif
#ifdef SENTINEL_ENDS_CLAIM
#define ENDS_CLAIM(p) true
#else
#define ENDS_CLAIM(p) (!SEEN_AS_SENTINEL(p))
#endif

/* The WAL. Position 0 is never used; the epoch that wrote an entry, 0 where none is stored. */
byte writer_of[LAST + 2];
byte generation_of[LAST + 2];
short sentinels;
/* Acknowledged rows that no generation holds yet, by position. */
short owed;

/* The latest shard manifest. A commit is put-if-absent of the next version, so that to read, check
   and commit is one step: whoever was overtaken reads again. */
byte epoch;
byte replay;
byte seen;
byte generation = 1;

/* Whether a replay that starts now gets to a position and takes its entry. */
inline check_replayable(p)
{
  assert(p > replay);
  assert(generation_of[p] >= generation);
  i = replay + 1;
  do
  :: i < p -> assert(writer_of[i] != 0); i++
  :: else -> break
  od;
  i = 0
}

inline find_tip()
{
  atomic { hint = seen };
  if
  :: atomic { hint > 0 && writer_of[hint] != 0 -> position = hint + 1; hint = 0 };
     do
     :: atomic { position <= LAST && writer_of[position] != 0 -> position++ }
     :: atomic { position > LAST || writer_of[position] == 0 -> break }
     od
  :: d_step {
       hint == 0 || writer_of[hint] == 0 ->
       position = LAST;
       do
       :: position > 0 && writer_of[position] == 0 -> position--
       :: else -> break
       od;
       position++;
       hint = 0
     }
  fi
}

proctype Writer(byte mine)
{
  byte position, hint, i, current;
  short memtable;

  /* Writers are alike, so let them claim in order. */
  d_step {
    epoch == mine - 1 ->
    epoch = mine;
    current = generation;
    printf("writer %d: claimed epoch %d; its manifest covers up to %d, last seen %d\n",
      mine, mine, replay, seen);
    /* What is remembered of the claimed manifest: where to start the replay. */
    i = replay + 1
  };

#ifndef NO_SENTINEL
  if
  :: mine == 1
  :: else ->
     do
     :: find_tip();
        if
        :: position > LAST -> goto over
        :: d_step {
             position <= LAST && FREE(position) ->
             writer_of[position] = mine;
             generation_of[position] = 0;
             sentinels = sentinels | BIT(position);
             printf("writer %d: sentinel at position %d\n", mine, position)
           };
           break
        :: position <= LAST && !FREE(position)
        fi
     od
  fi;
#endif

  position = i;
  i = 0;
  do
  :: atomic { position > LAST -> goto over }
  :: atomic { position <= LAST && writer_of[position] > mine ->
       printf("writer %d: met epoch %d at position %d: fenced\n",
         mine, writer_of[position], position);
       goto over }
  :: d_step {
       position <= LAST && writer_of[position] != 0 && writer_of[position] <= mine ->
       if
       :: !IS_SENTINEL(position) && generation_of[position] >= current ->
          memtable = memtable | BIT(position);
          printf("writer %d: replayed position %d\n", mine, position)
       :: else
       fi;
       position++
     }
  :: d_step { position <= LAST && writer_of[position] == 0 ->
       printf("writer %d: replay ends at position %d, which is missing\n", mine, position) };
     break
  od;

  /* A manifest with the last position that it saw, if it gets there. */
  if
  :: d_step {
       epoch == mine && seen < position - 1 ->
       seen = position - 1;
       printf("writer %d: last seen %d\n", mine, seen)
     }
  :: true
  fi;

  do
  :: position > LAST -> break
  :: d_step {
       position <= LAST && FREE(position) ->
       writer_of[position] = mine;
       generation_of[position] = current;
       printf("writer %d: put at position %d is acknowledged\n", mine, position);
       check_replayable(position);
       memtable = memtable | BIT(position);
       owed = owed | BIT(position);
       position++
     }
  :: atomic { position <= LAST && !FREE(position) ->
       if
       :: epoch > mine ->
          printf("writer %d: position %d is taken, and the epoch is %d: fenced\n",
            mine, position, epoch);
          break
       :: else -> position++
       fi }
  :: atomic {
       memtable != 0 ->
#ifndef NO_EPOCH_CHECK
       if
       :: epoch > mine ->
          printf("writer %d: flush refused, the epoch is %d\n", mine, epoch);
          break
       :: else
       fi;
#endif
       /* The last position seen is a hint: not every update renews it. */
       if
       :: seen = position - 1
       :: true
       fi;
       d_step {
         printf("writer %d: flushed generation %d, covering up to %d, last seen %d\n",
           mine, generation, position - 1, seen);
         generation++;
         replay = position - 1;
         owed = owed & ~memtable;
         memtable = 0;
         current = generation;
         /* What it covers without holding it is lost, and so is an older generation's entry. */
         i = 1;
         do
         :: i <= LAST ->
            if
            :: owed & BIT(i) -> assert(i > replay); assert(generation_of[i] >= generation)
            :: else
            fi;
            i++
         :: else -> break
         od;
         i = 0
       }
     }
  od;
over:
  position = 0; hint = 0; i = 0; memtable = 0; current = 0
}

/* Whether the collector knows of an entry: what might go, and sentinels. */
#define KNOWN(p) (told[p] != 0)
#define SEEN_AS_SENTINEL(p) (IS_SENTINEL(p) && p != overlooked)
#define MIGHT_GO(p) (p <= its_replay && p <= its_seen && p != highest)
byte told[LAST + 2];

/* Whose the entries are: by the sentinels that were read, or by reading each. */
inline tell_epochs()
{
  p = 1;
  do
  :: p <= LAST ->
     if
     :: writer_of[p] != 0 && SEEN_AS_SENTINEL(p) -> located = located | BIT(writer_of[p])
     :: else
     fi;
     p++
  :: else -> break
  od;
  claim = 2;
  do
  :: claim <= its_epoch && (located & BIT(claim)) -> claim++
  :: else -> break
  od;
#ifndef UNLOCATED
  if
  :: claim <= its_epoch -> overlooked = 0
  :: else
  fi;
#endif
  is_told = (claim > its_epoch);
#ifdef UNLOCATED
  is_told = true;
#endif
  claim = 1;
  p = 1;
  do
  :: p <= LAST ->
     if
     :: writer_of[p] != 0 && !is_told && MIGHT_GO(p) -> told[p] = writer_of[p]
     :: writer_of[p] != 0 && is_told && SEEN_AS_SENTINEL(p) ->
#ifdef IN_ORDER
        claim++;
        told[p] = claim;
#else
        told[p] = writer_of[p];
#ifdef BY_NEAREST
        claim = writer_of[p];
#else
        if
        :: writer_of[p] > claim -> claim = writer_of[p]
        :: else
        fi;
#endif
#endif
     :: writer_of[p] != 0 && is_told && !SEEN_AS_SENTINEL(p) -> told[p] = claim
     :: else
     fi;
     p++
  :: else -> break
  od;
  located = 0; is_told = false; claim = 0
}

/* What may be deleted, by the manifest that was read and the listing after it. */
inline plan()
{
  highest = LAST;
  do
  :: highest > 0 && writer_of[highest] == 0 -> highest--
  :: else -> break
  od;
  tell_epochs();
  /* An epoch is past its claim when a row of it is stored. One that may not be holds what leads it
     to the first newer entry, which is a sentinel. */
  p = 1;
  do
  :: p <= LAST ->
     if
     :: KNOWN(p) && ENDS_CLAIM(p) -> finished = finished | BIT(told[p])
     :: else
     fi;
     if
     :: writer_of[p] != 0 && IS_SENTINEL(p) && (newest == 0 || writer_of[p] > writer_of[newest]) ->
        newest = p
     :: else
     fi;
     p++
  :: else -> break
  od;
  claim = 1;
  do
  :: claim < its_epoch ->
     if
     :: !(finished & BIT(claim)) ->
        p = 1;
        do
        :: p <= LAST && !(KNOWN(p) && told[p] > claim) -> p++
        :: else -> break
        od;
        if
        :: p > LAST -> held = ALL
        :: else ->
           do
           :: p > 0 && writer_of[p] != 0 -> held = held | BIT(p); p--
           :: else -> break
           od
        fi
     :: else
     fi;
     claim++
  :: else -> break
  od;
  p = 1;
  do
  :: p <= LAST ->
     if
     :: writer_of[p] != 0 && COVERED(p) && SEEN(p) && NOT_HIGHEST(p) && NO_FENCE(p) && !HELD(p) ->
        doomed = doomed | BIT(p)
     :: else
     fi;
     p++
  :: else -> break
  od;
  p = 1;
  do
  :: p <= LAST -> told[p] = 0; p++
  :: else -> break
  od;
  p = 1; highest = 0; finished = 0; claim = 0; held = 0; newest = 0
}

proctype Collector()
{
  byte its_epoch, its_replay, its_seen, its_generation;
  byte round, p, highest, claim, newest, overlooked;
  short finished, held, doomed, located;
  bool is_told;

  do
  :: round < COLLECTIONS ->
     d_step {
       its_epoch = epoch; its_replay = replay; its_seen = seen; its_generation = generation;
       round++
     };
     atomic {
       if
       :: overlooked = 0
       :: overlooked = 1
       :: overlooked = 2
       :: overlooked = 3
       :: overlooked = 4
       fi;
       d_step {
         plan();
         overlooked = 0;
         its_epoch = 0; its_replay = 0; its_seen = 0; its_generation = 0
       }
     };
     /* An erasure puts sentinels of the same epochs in place of some rows that nobody needs. */
     atomic {
       p = 1;
       do
       :: p <= LAST ->
          if
          :: writer_of[p] != 0 && !IS_SENTINEL(p) && EMPTIABLE(p) ->
             printf("erasure: position %d becomes a sentinel of epoch %d\n", p, writer_of[p]);
             assert(!(owed & BIT(p)));
             sentinels = sentinels | BIT(p)
          :: true
          fi;
          p++
       :: p > LAST -> break
       od;
       p = 1
     };
     /* A batch may be cut short anywhere. */
     do
     :: d_step {
          doomed != 0 ->
          p = 1;
          do
          :: !(doomed & BIT(p)) -> p++
          :: else -> break
          od;
          if
          :: writer_of[p] != 0 && IS_SENTINEL(p) ->
             printf("collector: deletes the sentinel at position %d\n", p)
          :: writer_of[p] != 0 && !IS_SENTINEL(p) ->
             printf("collector: deletes the entry at position %d\n", p)
          :: else
          fi;
          assert(!(owed & BIT(p)));
          /* What the manifest says of its generation. */
          assert(generation_of[p] < generation || IS_SENTINEL(p));
          writer_of[p] = 0;
          generation_of[p] = 0;
          sentinels = sentinels & ~BIT(p);
          doomed = doomed & ~BIT(p);
          p = 1
        }
     :: doomed == 0 -> break
     :: break
     od;
     doomed = 0
  :: else -> break
  od;
  round = 0
}

init
{
  byte w;
  atomic {
    w = 1;
    do
    :: w <= WRITERS -> run Writer(w); w++
    :: else -> break
    od;
    run Collector();
    w = 0
  }
}

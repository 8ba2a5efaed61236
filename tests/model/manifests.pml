/* A shard's manifests: writers that claim and commit, drops, and the collector of old manifests.

   Whoever looks for the latest one starts at the version hint, at version 1 where that leads to
   nothing (Lance up to 13), and goes up two names at a time. A commit is put-if-absent of the next
   name; the hint is written after it, plainly, however late. A writer remembers where it stands and
   looks again when a name is taken; it is fenced by a newer epoch. Any of them may stall anywhere,
   save that a claim or a drop, from its look to its put, takes less than the grace: that is what the
   grace is for. The collector is memwal/jobs/garbage/kinds/shard_manifest.py, one run after another.

   Properties: a commit that succeeds comes after the latest one; whoever looks finds the latest, or
   fails where a hint was written late, and never takes the shard for a new one.

   Unsafe variants: FREE_NAMES (no name stays taken), FREE_AFTER_DROPS (one does, right after an
   epoch's own last manifest), FREE_PRESENT (the present epoch counts as ended), LEFT_READABLE (what
   stays below the floor can be read), FIRST_IS_GONE (version 1 is deleted), BELOW_HINT (the hint's
   target does not count), HIGHEST_FIRST, NO_GRACE. */

#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef LAST
#define LAST 6
#endif
#ifndef DROPS
#define DROPS 1
#endif
#ifndef COLLECTIONS
#define COLLECTIONS 2
#endif

#define NONE 0
#define REAL 1
#define STOPPER 2

/* What is stored under a name; of what was ever committed, its epoch, and whether it was a drop. */
byte stored[LAST + 4];
byte epoch[LAST + 4];
bool drop[LAST + 4];
byte hint;
bool late;
byte latest;
/* What claims and drops that are under way have found; LAST + 1 where none is. */
byte began[WRITERS + 2];

/* Sets `at` to what whoever looks takes for the latest version; 0 when it fails. */
inline look()
{
  at = hint;
  if
  :: at == 0 || stored[at] == NONE -> at = 1
  :: else
  fi;
  do
  :: stored[at + 2] != NONE -> at = at + 2
  :: stored[at + 2] == NONE && stored[at + 1] != NONE -> at = at + 1
  :: else -> break
  od;
  if
  :: stored[at] == REAL -> assert(at == latest)
  :: stored[at] == STOPPER -> assert(late); at = 0
  :: stored[at] == NONE -> assert(false)
  fi
}

/* A hint that is not the latest version when it is written is late. */
inline write_hint(version)
{
  hint = version;
  late = (version < latest)
}

inline commit(by, is_drop)
{
  assert(at == latest);
  latest = at + 1;
  stored[latest] = REAL;
  epoch[latest] = by;
  drop[latest] = is_drop;
  at = latest
}

proctype Writer(byte mine)
{
  byte at;

  /* The first one made the shard. */
  if
  :: atomic { mine == 1 -> at = 1; goto claimed }
  :: else
  fi;
  d_step { look(); began[mine] = at };
  if
  :: d_step {
       at > 0 && at < LAST && stored[at + 1] == NONE && epoch[at] == mine - 1 ->
       began[mine] = LAST + 1;
       printf("writer %d: claims epoch %d with version %d\n", mine, mine, at + 1);
       commit(mine, false)
     }
  :: d_step { else -> began[mine] = LAST + 1 }; goto over
  fi;
claimed:
  do
  :: d_step { write_hint(at); printf("writer %d: the hint is %d\n", mine, at) };
     if
     :: break
     :: goto next
     fi;
next:
     if
     :: d_step {
          at < LAST && stored[at + 1] == NONE ->
          printf("writer %d: commits version %d\n", mine, at + 1);
          commit(mine, false)
        }
     :: d_step {
          at < LAST && stored[at + 1] != NONE ->
          look();
          printf("writer %d: the name is taken; the latest is %d\n", mine, at);
        };
        if
        :: at == 0 || epoch[at] != mine -> goto over
        :: else -> goto next
        fi
     :: at >= LAST -> goto over
     fi
  od;
over:
  at = 0
}

proctype Dropper()
{
  byte at, drops;

  do
  :: drops < DROPS ->
     d_step { look(); began[0] = at; drops++ };
     if
     :: d_step {
          at > 0 && at < LAST && stored[at + 1] == NONE ->
          began[0] = LAST + 1;
          printf("drop: version %d\n", at + 1);
          commit(epoch[at], true)
        };
        d_step { write_hint(at); printf("drop: the hint is %d\n", at) }
     :: d_step { else -> began[0] = LAST + 1 }
     fi
  :: break
  od;
  at = 0; drops = 0
}

/* The lowest of a run of manifests up to the latest, and from where on they stay. */
inline plan()
{
  lowest = latest;
  do
  :: lowest > 1 && stored[lowest - 1] == REAL -> lowest--
  :: else -> break
  od;
  floor = latest;
#ifndef FREE_PRESENT
  do
  :: floor > lowest && drop[floor] -> floor--
  :: else -> break
  od;
#endif
#ifndef BELOW_HINT
  if
  :: hint < floor -> floor = hint
  :: else
  fi;
#endif
#ifndef NO_GRACE
  v = 0;
  do
  :: v <= WRITERS ->
     if
     :: began[v] < floor -> floor = began[v]
     :: else
     fi;
     v++
  :: else -> break
  od;
#endif
  /* Whether the name after version v - 1 may be tried for by a writer of that version's epoch: it is
     followed by drops, at most, up to a newer epoch. */
  v = lowest;
  do
  :: v < floor ->
     next = v;
     do
     :: next < latest && drop[next] -> next++
     :: else -> break
     od;
     if
#ifndef FREE_NAMES
#ifdef FREE_AFTER_DROPS
     :: v > 1 && !drop[v - 1] && epoch[next] != epoch[v - 1] -> stops = stops | (1 << v)
#else
     :: v > 1 && epoch[next] != epoch[v - 1] -> stops = stops | (1 << v)
#endif
#endif
#ifndef FIRST_IS_GONE
     :: v == 1 -> stops = stops | (1 << v)
#endif
     :: else
     fi;
     v++
  :: else -> break
  od;
  next = 0
}

proctype Collector()
{
  byte lowest, floor, v, next, round;
  short stops;

  do
  :: round < COLLECTIONS && latest > 1 ->
     d_step { stops = 0; plan(); round++; v = lowest };
     do
     :: d_step { v < floor ->
          if
          :: stops & (1 << v) ->
#ifndef LEFT_READABLE
             stored[v] = STOPPER;
#endif
             printf("collector: version %d becomes a stopper\n", v)
          :: else
          fi;
          v++ }
     :: v >= floor -> break
     od;
     v = lowest;
     do
     :: d_step { v < floor ->
#ifdef HIGHEST_FIRST
          next = floor - 1 - (v - lowest);
#else
          next = v;
#endif
          if
          :: !(stops & (1 << next)) ->
             stored[next] = NONE;
             printf("collector: deletes version %d\n", next)
          :: else
          fi;
          next = 0;
          v++ }
     :: break
     od;
     atomic { lowest = 0; floor = 0; v = 0; stops = 0 }
  :: break
  od;
  round = 0
}

init
{
  byte w;
  atomic {
    latest = 1; stored[1] = REAL; epoch[1] = 1; hint = 1;
    w = 0;
    do
    :: w <= WRITERS + 1 -> began[w] = LAST + 1; w++
    :: else -> break
    od;
    w = 1;
    do
    :: w <= WRITERS -> run Writer(w); w++
    :: else -> break
    od;
    run Dropper();
    run Collector();
    w = 0
  }
}

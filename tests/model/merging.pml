/* Two mergers of one shard, garbage collection in two phases, and a reader of any retained version.

   Every generation g inserts a key of its own (bit g) and updates one that all share, whose value is
   g. A base-table commit is one step, conditional as Lance's is: it fails when another commit of the
   shard wrote a common row since the version it was made from. A fold of several generations has
   such a row (its anchor); a fold of one has not, and Lance compares the marks only. That is the
   guard of memwal/jobs/merge/plan.py. Mergers and collector die by being left behind. Indexes are left
   out: their gate is one more lower bound beside the retained versions' own.

   Properties: a version that says "merged up to g" has every row up to g, once, newest wins
   (invariant 1); progress never falls (3); a reader gets every generation that was flushed before
   it began, and no retained version is ever refused (5, 6).

   LEASE makes mergers and collector take turns; it may lapse at any moment. The unsafe variants:
   UNANCHORED_FOLDS, NEWEST_FIRST, MARK_BEFORE_ROWS, NO_MARK_CHECK (the mergers), DROP_AT_LATEST,
   NO_GRACE, DELETE_LISTED (the collector), NO_HOLE_CHECK (the reader). */

#ifndef GENERATIONS
#define GENERATIONS 3
#endif
#ifndef MERGERS
#define MERGERS 2
#endif
#ifndef READS
#define READS 2
#endif
#define VERSIONS (GENERATIONS + 1)
#define BIT(g) (1 << (g))
#define UP_TO(g) (BIT((g) + 1) - 2)

#ifdef UNANCHORED_FOLDS
#define CONFLICTS(first, last, seen) false
#else
#define CONFLICTS(first, last, seen) (last > first && merges[latest] != seen)
#endif
#ifdef NO_MARK_CHECK
#define TOO_LOW(mark) false
#else
#define TOO_LOW(mark) (mark <= merged[latest])
#endif
#ifdef NO_GRACE
#define GRACE_OVER(g) true
#else
/* Reads are shorter than the grace: who saw it listed has ended when it is over. */
#define GRACE_OVER(g) !(reading & BIT(g))
#endif
#ifdef DELETE_LISTED
#define UNLISTED(g) true
#else
#define UNLISTED(g) !(listed & BIT(g))
#endif
#ifdef NO_HOLE_CHECK
#define HOLE(after) false
#else
#define HOLE(after) ((UP_TO(flushed) & ~UP_TO(after) & ~listed) != 0)
#endif
#ifdef LEASE
#define TAKE_LEASE(me) atomic { holder == 0 -> holder = me }
#define MAY_COMMIT(me) (holder == me)
#define GIVE_LEASE(me) if :: holder == me -> holder = 0 :: else fi
#else
#define TAKE_LEASE(me) skip
#define MAY_COMMIT(me) true
#define GIVE_LEASE(me) skip
#endif

/* Versions of the base table. */
byte merged[VERSIONS + 1];
byte rows[VERSIONS + 1];
byte value[VERSIONS + 1];
byte merges[VERSIONS + 1];
byte expired;
byte latest;
/* The shard: generations flushed so far, named by its manifest, and stored. */
byte flushed;
byte listed;
byte stored;
/* Generations that a reader has yet to scan. */
byte reading;
byte holder;

proctype Writer()
{
  do
  :: d_step {
       flushed < GENERATIONS ->
       flushed++;
       stored = stored | BIT(flushed);
       listed = listed | BIT(flushed);
       printf("writer: flushed generation %d\n", flushed)
     }
  :: flushed == GENERATIONS -> break
  od
}

/* One commit on top of the latest version, of generations first to last made from version `from`. */
inline commit(from, first, last)
{
  fold = UP_TO(last) & ~UP_TO(first - 1);
  printf("merger %d: version %d folds generations %d to %d, read at version %d\n",
    me, latest + 1, first, last, from);
  /* What was not there at `from` is inserted; if it came since, it is there twice now. */
  assert((fold & ~rows[from] & rows[latest]) == 0);
  assert(last >= value[latest]);
  assert(last >= merged[latest]);
  latest++;
  merged[latest] = last;
  rows[latest] = rows[latest - 1] | fold;
  value[latest] = last;
  merges[latest] = merges[latest - 1] + 1;
  assert((UP_TO(merged[latest]) & ~rows[latest]) == 0);
  fold = 0
}

proctype Merger(byte me)
{
  byte from, first, last, seen, fold;

  do
  :: merged[latest] == GENERATIONS -> break
  :: merged[latest] < GENERATIONS ->
     TAKE_LEASE(me);
     d_step { from = latest; first = merged[from] + 1; seen = merges[from] };
     atomic {
       if
#ifdef NEWEST_FIRST
       :: first <= flushed && (listed & BIT(flushed)) -> first = flushed; last = first
#else
       :: first <= flushed && (listed & BIT(first)) -> last = first;
          do
          :: last < flushed && (listed & BIT(last + 1)) -> last++
          :: break
          od
#endif
       :: else -> last = 0
       fi
     };
     /* Its folders may be gone when others have merged them meanwhile: it looks again. */
     if
     :: atomic { last > 0 && (stored & BIT(first)) && MAY_COMMIT(me) -> skip };
#ifdef MARK_BEFORE_ROWS
        d_step {
          if
          :: TOO_LOW(last) || latest == VERSIONS
          :: else ->
             latest++;
             merged[latest] = last;
             rows[latest] = rows[latest - 1];
             value[latest] = value[latest - 1];
             printf("merger %d: version %d marks generation %d as merged\n", me, latest, last);
             assert((UP_TO(merged[latest]) & ~rows[latest]) == 0)
          fi
        };
#endif
        d_step {
          if
          :: TOO_LOW(last) || CONFLICTS(first, last, seen) || latest == VERSIONS
          :: else -> commit(from, first, last)
          fi
        }
     :: last == 0 || !(stored & BIT(first)) || !MAY_COMMIT(me)
     fi;
     atomic { from = 0; first = 0; last = 0; seen = 0 };
     GIVE_LEASE(me)
  od
}

#ifdef LEASE
/* A holder that sleeps past its expiry is superseded. */
proctype Clock()
{
  byte lapses;

  do
  :: atomic { holder != 0 && lapses < 2 -> holder = 0; lapses++ }
  :: break
  od;
  lapses = 0
}
#endif

/* The lowest progress of what is retained. */
inline look()
{
  low = merged[latest];
#ifndef DROP_AT_LATEST
  v = 0;
  do
  :: v < latest ->
     if
     :: !(expired & BIT(v)) && merged[v] < low -> low = merged[v]
     :: else
     fi;
     v++
  :: else -> break
  od;
  v = 0
#endif
}

proctype Collector()
{
  byte low, v, g;

  do
  :: break
  :: TAKE_LEASE(9);
     /* Versions past the retention go, any of them but the latest. */
     v = 0;
     do
     :: d_step { v < latest && !(expired & BIT(v)) ->
          expired = expired | BIT(v);
          printf("collector: version %d expires\n", v);
          v++ }
     :: v < latest -> v++
     :: v >= latest -> break
     od;
     v = 0;
     d_step { look() };
     if
     :: atomic { MAY_COMMIT(9) && (listed & UP_TO(low)) ->
          printf("collector: drops up to generation %d from the manifest\n", low);
          listed = listed & ~UP_TO(low) }
     :: true
     fi;
     g = 1;
     do
     :: g <= low ->
        if
        :: atomic {
             (stored & BIT(g)) && UNLISTED(g) && GRACE_OVER(g) && MAY_COMMIT(9) ->
             printf("collector: deletes generation %d\n", g);
             stored = stored & ~BIT(g)
           }
        :: true
        fi;
        g++
     :: g > low -> break
     od;
     atomic { low = 0; g = 0 };
     GIVE_LEASE(9)
  od
}

proctype Reader()
{
  byte v, wanted, g, round;

  do
  :: round < READS ->
     round++;
     atomic {
       v = 0;
       do
       :: v < latest -> v++
       :: !(expired & BIT(v)) -> break
       od;
       wanted = UP_TO(flushed);
       printf("reader: opens version %d, merged up to %d\n", v, merged[v])
     };
     d_step {
       if
       :: HOLE(merged[v]) ->
          printf("reader: version %d is refused: generations above %d are gone\n", v, merged[v]);
          assert(expired & BIT(v));
          wanted = 0
       :: else ->
          reading = listed & ~UP_TO(merged[v]);
          /* Everything that was flushed before: in the base, or in a listed generation. */
          assert((wanted & ~rows[v] & ~reading) == 0)
       fi
     };
     g = 1;
     do
     :: d_step { g <= GENERATIONS && (reading & BIT(g)) ->
          printf("reader: scans generation %d\n", g);
          assert(stored & BIT(g));
          reading = reading & ~BIT(g);
          g++ }
     :: g <= GENERATIONS && !(reading & BIT(g)) -> g++
     :: g > GENERATIONS -> break
     od;
     atomic { v = 0; wanted = 0; g = 0 }
  :: round == READS -> break
  od;
  round = 0
}

init
{
  byte m;
  atomic {
    run Writer();
    m = 1;
    do
    :: m <= MERGERS -> run Merger(m); m++
    :: else -> break
    od;
    run Collector();
    run Reader();
#ifdef LEASE
    run Clock();
#endif
    m = 0
  }
}

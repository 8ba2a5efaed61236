/* A refresh of the shard snapshot beside mergers that keep no lease.

   The refresh replaces the MemWAL index entry with what it read: Lance reports no conflict, so that
   progress made meanwhile is overwritten. memwal/jobs/snapshot/apply.py reads back what landed and the
   versions between, and puts right what fell. Each merger folds one generation a commit and may be
   slow; generation g inserts key g. Lance refuses a mark that is not higher, and a commit whose
   inserted keys another one wrote since it was read (for comparable key types).

   With READER, generations are flushed meanwhile. A reader goes by the snapshot of the version that it
   holds, if that is the one that was confirmed last: it reads what the snapshot lists above the
   version's progress over the version's rows. It looks for the confirmation after the version. Each
   commit of a refresh has a stamp of its own.

   Properties: a refresh that reports success has lowered nothing; no key is there twice; no reader
   puts a generation over rows of a newer one.

   Unsafe variants: NO_REPAIR; KILLED_UNCOMPARED, the exception that README.md names: the refresh
   dies before its repair, and the keys are of a type that Lance does not compare; UNCONFIRMED, where
   readers go by any snapshot; ONE_STAMP, where a repair has that of the commit that it repairs. */

#ifndef VERSIONS
#define VERSIONS 8
#endif
#ifndef MERGERS
#define MERGERS 2
#endif
#define GENERATIONS 3
#define BIT(g) (1 << (g))

#ifdef KILLED_UNCOMPARED
#define COMPARED false
#else
#define COMPARED true
#endif

byte merged[VERSIONS + 1];
byte rows[VERSIONS + 1];
byte latest;
#ifdef READER
byte flushed;
#else
byte flushed = GENERATIONS;
#endif
byte listed[VERSIONS + 1];
byte stamp[VERSIONS + 1];
byte confirmed;

proctype Writer()
{
  do
  :: flushed < GENERATIONS -> flushed++
  :: break
  od
}

proctype Reader()
{
  byte at;

  at = latest;
  if
#ifdef UNCONFIRMED
  :: stamp[at] ->
#else
  :: stamp[at] && stamp[at] == confirmed ->
#endif
     printf("reader: version %d says %d, its snapshot lists %d\n", at, merged[at], listed[at]);
     assert(listed[at] <= merged[at] || !(rows[at] >> (listed[at] + 1)))
  :: else
  fi
}

proctype Merger(byte me)
{
  byte from, mark;

  do
  :: latest < VERSIONS ->
     d_step { from = latest; mark = merged[from] + 1 };
     atomic {
       if
       :: mark > flushed -> break
       :: else
       fi;
       if
       :: latest == VERSIONS || mark <= merged[latest] ||
          (COMPARED && (BIT(mark) & ~rows[from] & rows[latest])) ->
          printf("merger %d: generation %d is refused\n", me, mark)
       :: else ->
          assert(!(BIT(mark) & ~rows[from] & rows[latest]));
          latest++;
          merged[latest] = mark;
          rows[latest] = rows[latest - 1] | BIT(mark);
          listed[latest] = listed[latest - 1];
          stamp[latest] = stamp[latest - 1];
          printf("merger %d: version %d merges generation %d, read at version %d\n",
            me, latest, mark, from)
       fi
     }
  :: break
  od
}

proctype Refresh()
{
  byte floor, from, landed, lowered, number, read, v;

  read = flushed;
#ifdef ONE_STAMP
  number = 1;
#endif
  from = latest;
  floor = from;
  lowered = merged[from];
  do
  :: atomic {
       latest < VERSIONS ->
       latest++;
       landed = latest;
       merged[landed] = lowered;
       rows[landed] = rows[landed - 1];
#ifndef ONE_STAMP
       number++;
#endif
       listed[landed] = read;
       stamp[landed] = number;
       printf("refresh: version %d says merged up to %d\n", landed, lowered)
     };
#ifdef KILLED_UNCOMPARED
     if
     :: true -> break
     :: true
     fi;
#endif
     d_step {
       lowered = merged[landed];
       v = floor;
       do
       :: v < landed ->
          if
          :: merged[v] > lowered -> lowered = merged[v]
          :: else
          fi;
          v++
       :: else -> break
       od;
       v = 0
     };
     if
#ifndef NO_REPAIR
     :: lowered > merged[landed] -> printf("refresh: progress fell below %d\n", lowered)
     :: else ->
#else
     :: true ->
#endif
        assert(lowered == merged[landed]);
        confirmed = number;
        break
     fi
  :: latest == VERSIONS -> break
  od
}

init
{
  byte m;
  atomic {
    m = 1;
    do
    :: m <= MERGERS -> run Merger(m); m++
    :: else -> break
    od;
#ifdef READER
    run Writer();
    run Reader();
#endif
    run Refresh();
    m = 0
  }
}

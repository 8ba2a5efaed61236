/* A refresh of the shard snapshot beside mergers that keep no lease.

   The refresh replaces the MemWAL index entry with what it read: Lance reports no conflict, so that
   progress made meanwhile is overwritten. memwal/apply/snapshot.py reads back what landed and the
   versions between, and puts right what fell. Each merger folds one generation a commit and may be
   slow; generation g inserts key g. Lance refuses a mark that is not higher, and a commit whose
   inserted keys another one wrote since it was read (for comparable key types).

   Properties: a refresh that reports success has lowered nothing; no key is there twice.

   Unsafe variants: NO_REPAIR; KILLED_UNCOMPARED, the exception that README.md names: the refresh
   dies before its repair, and the keys are of a type that Lance does not compare. */

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

proctype Merger(byte me)
{
  byte from, mark;

  do
  :: latest < VERSIONS ->
     d_step { from = latest; mark = merged[from] + 1 };
     atomic {
       if
       :: mark > GENERATIONS -> break
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
          printf("merger %d: version %d merges generation %d, read at version %d\n",
            me, latest, mark, from)
       fi
     }
  :: break
  od
}

proctype Refresh()
{
  byte floor, from, landed, lowered, v;

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
    run Refresh();
    m = 0
  }
}

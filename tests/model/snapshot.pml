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

   With RESTORE, a user restores any version, once, and a commit of the refresh may land without a
   reply. Lance refuses whatever was read before a restore. The refresh then begins anew: it knows its
   own commits in the versions since, lets go of all that was before the restore, and reads anew what
   is flushed.

   Properties: a refresh that reports success has lowered nothing, but for what a user turned back; no
   version says of a generation that it is merged without having its rows; no key is there twice; no
   reader puts a generation over rows of a newer one.

   Unsafe variants: NO_REPAIR; KILLED_UNCOMPARED, the exception that README.md names: the refresh
   dies before its repair, and the keys are of a type that Lance does not compare; UNCONFIRMED, where
   readers go by any snapshot; ONE_STAMP, where a repair has that of the commit that it repairs;
   RAISE_RESTORED, where whatever fell since the first attempt is raised; NO_REPLY_NO_COMMIT, where a
   commit without a reply is taken for one that did not land; READ_ONCE, where an attempt stores what
   the first one read, though a user may have restored a version whose progress was not repaired yet. */

#ifndef VERSIONS
#define VERSIONS 8
#endif
#ifndef MERGERS
#define MERGERS 2
#endif
#ifndef GENERATIONS
#define GENERATIONS 3
#endif
#define NONE 255
#define BIT(g) (1 << (g))
#define HAS_ROWS(v) (!((BIT(merged[v] + 1) - 2) & ~rows[v]))

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
byte restored;
bool ours[VERSIONS + 1];

proctype User()
{
  byte to;

  do
  :: to < latest -> to++
  :: break
  od;
  atomic {
    if
    :: latest < VERSIONS ->
       latest++;
       restored = latest;
       merged[latest] = merged[to];
       rows[latest] = rows[to];
       listed[latest] = listed[to];
       stamp[latest] = stamp[to];
       printf("user: version %d restores version %d, merged up to %d\n", latest, to, merged[to])
    :: else
    fi
  }
}

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
       :: latest == VERSIONS || mark <= merged[latest] || restored > from ||
          (COMPARED && (BIT(mark) & ~rows[from] & rows[latest])) ->
          printf("merger %d: generation %d is refused\n", me, mark)
       :: else ->
          assert(!(BIT(mark) & ~rows[from] & rows[latest]));
          latest++;
          merged[latest] = mark;
          rows[latest] = rows[latest - 1] | BIT(mark);
          listed[latest] = listed[latest - 1];
          stamp[latest] = stamp[latest - 1];
          assert(HAS_ROWS(latest));
          printf("merger %d: version %d merges generation %d, read at version %d\n",
            me, latest, mark, from)
       fi
     }
  :: break
  od
}

proctype Refresh()
{
  byte first, floor, from, landed, looked, lowered, number, read, v;

  read = flushed;
#ifdef ONE_STAMP
  number = 1;
#endif
  d_step {
    from = latest;
    first = from;
    looked = from;
    lowered = merged[from]
  };
#ifdef RAISE_RESTORED
  floor = from;
#else
  floor = NONE;
#endif
  do
  :: atomic {
       latest < VERSIONS ->
       landed = NONE;
       if
       :: restored > from -> printf("refresh: a commit read at version %d is refused\n", from)
       :: else ->
          latest++;
          merged[latest] = lowered;
          rows[latest] = rows[latest - 1];
          ours[latest] = true;
#ifndef ONE_STAMP
          number++;
#endif
          listed[latest] = read;
          stamp[latest] = number;
          printf("refresh: version %d says merged up to %d\n", latest, lowered);
          assert(HAS_ROWS(latest));
          if
          :: landed = latest; looked = landed; floor = (from < floor -> from : floor)
#ifdef RESTORE
          :: printf("refresh: there is no reply\n")
#endif
          fi
       fi
     };
#ifdef KILLED_UNCOMPARED
     if
     :: true -> break
     :: true
     fi;
#endif
#ifndef READ_ONCE
     if
     :: landed == NONE -> read = flushed
     :: else
     fi;
#endif
     d_step {
       if
       :: landed == NONE ->
          v = from;
          from = latest;
          do
          :: looked < from ->
             looked++;
             if
#ifndef RAISE_RESTORED
             :: looked == restored -> floor = NONE
#endif
#ifndef NO_REPLY_NO_COMMIT
             :: ours[looked] -> floor = (v < floor -> v : floor)
#endif
             :: else
             fi
          :: else -> break
          od
       :: else -> from = landed
       fi;
       lowered = merged[from];
       v = floor;
       do
       :: v < from ->
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
     :: landed == NONE
#ifndef NO_REPAIR
     :: landed != NONE && lowered > merged[landed] ->
        printf("refresh: progress fell below %d\n", lowered)
     :: landed != NONE && lowered == merged[landed] ->
#else
     :: landed != NONE ->
#endif
        d_step {
          v = (restored > first && restored < landed -> restored : first);
          do
          :: v < landed -> assert(merged[v] <= merged[landed]); v++
          :: else -> break
          od;
          confirmed = number
        };
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
#ifdef RESTORE
    run User();
#endif
    run Refresh();
    m = 0
  }
}

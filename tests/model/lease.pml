/* The table's lease: numbered claims made put-if-absent; the number is the token.

   A reply may be lost, so a claim that is told "exists" reads back whose it is. A holder may sleep
   past its expiry at any moment; another then claims the next number. Before each commit a holder
   looks for a newer claim (memwal/store/records/lease.py). What slips between that look and the commit is
   the commit's own business: it is a compare-and-swap, in merging.pml and snapshot.pml.

   Garbage deletes superseded claims, lowest first. So whoever has claimed a number, or looks for a
   newer claim, asks for the number before its own too: if that is gone, those above may be, and it
   lists all. A renewal that was stalled may bring a claim back that was deleted.

   Properties: one token has one holder; who was superseded before its look commits no more.

   Unsafe variants: PLAIN_PUT, EXISTS_IS_OURS (after a lost reply, what exists is taken for ours),
   NO_LOOK, NO_PREDECESSOR (nobody asks for the number before), HIGHEST_FIRST (the collector). */

#ifndef HOLDERS
#define HOLDERS 3
#endif
#define TOKENS 4

#ifdef NO_PREDECESSOR
#define OVERTAKEN(token) (claim[token + 1] != 0)
#else
#define OVERTAKEN(token) \
  (claim[token + 1] != 0 || ((token == 1 || claim[token - 1] == 0) && newest > token))
#endif

#ifdef PLAIN_PUT
#define ABSENT(token) true
#else
#define ABSENT(token) (claim[token] == 0)
#endif

#define CLAIM claim[token] = me; newest = (token > newest -> token : newest)

/* Who made the claim of a number; 0 where there is none. */
byte claim[TOKENS + 2];
bit over[TOKENS + 2];
/* The newest claim there is, and the newest that ever was. */
byte newest;
/* Who believes to hold a token. */
byte believers[TOKENS + 2];

proctype Holder(byte me)
{
  byte token;
  bit superseded;

  do
  :: break
  :: token = newest + 1;
     if
     :: token > TOKENS -> break
     :: token <= TOKENS && token > 1 && !over[token - 1] && claim[token - 1] != 0 ->
        goto again
     :: token <= TOKENS && (token == 1 || over[token - 1])
     fi;
     if
     :: atomic { ABSENT(token) -> CLAIM;
          printf("holder %d: claims token %d\n", me, token) }
     :: atomic { ABSENT(token) -> CLAIM;
          printf("holder %d: claims token %d; the reply is lost\n", me, token) };
        goto reply_lost
     :: atomic { claim[token] != 0 -> printf("holder %d: token %d exists\n", me, token) };
reply_lost:
#ifndef EXISTS_IS_OURS
        if
        :: claim[token] == me
        :: claim[token] != me -> goto again
        fi
#else
        skip
#endif
     fi;
     if
     :: atomic { OVERTAKEN(token) -> over[token] = 1;
          printf("holder %d: token %d was collected\n", me, token) };
        goto again
     :: !OVERTAKEN(token)
     fi;
     atomic {
       believers[token]++;
       printf("holder %d: holds token %d\n", me, token);
       assert(believers[token] == 1)
     };
     do
     :: atomic {
          superseded = OVERTAKEN(token);
#ifndef NO_LOOK
          if
          :: superseded -> printf("holder %d: superseded, stops\n", me); break
          :: else
          fi;
#endif
          assert(newest == token)
        };
        printf("holder %d: commits\n", me)
     :: OVERTAKEN(token) -> break
     :: !OVERTAKEN(token) ->
        atomic { claim[token] = me; printf("holder %d: renews token %d\n", me, token) }
     :: atomic { over[token] = 1; printf("holder %d: released\n", me); break }
     od;
again:
     atomic { token = 0; superseded = 0 }
  od;
  token = 0; superseded = 0
}

proctype Collector()
{
  byte t;

  do
  :: atomic {
#ifdef HIGHEST_FIRST
       t = newest;
       do
       :: t > 1 -> t--;
          if
          :: claim[t] != 0 -> break
          :: else
          fi
       :: else -> break
       od;
#else
       t = 1;
       do
       :: t < newest && claim[t] == 0 -> t++
       :: else -> break
       od;
#endif
       if
       :: t < newest && claim[t] != 0 ->
          claim[t] = 0; printf("collector: deletes token %d\n", t)
       :: else -> break
       fi
     }
  :: break
  od;
  t = 0
}

/* A claim expires when its holder sleeps for long; what a clock says decides no more than that. */
proctype Clock()
{
  byte t;

  t = 1;
  do
  :: atomic { t <= TOKENS && claim[t] != 0 && !over[t] ->
       over[t] = 1;
       printf("clock: token %d expires\n", t);
       t++ }
  :: atomic { t <= TOKENS && over[t] -> t++ }
  :: break
  od;
  t = 0
}

init
{
  byte h;
  atomic {
    h = 1;
    do
    :: h <= HOLDERS -> run Holder(h); h++
    :: else -> break
    od;
    run Clock();
    run Collector();
    h = 0
  }
}

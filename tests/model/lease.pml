/* The table's lease: numbered claims made put-if-absent; the number is the token.

   A reply may be lost, so a claim that is told "exists" reads back whose it is. A holder may sleep
   past its expiry at any moment; another then claims the next number. Before each commit a holder
   looks for a newer claim (memwal/store/lease.py). What slips between that look and the commit is
   the commit's own business: it is a compare-and-swap, in merging.pml and snapshot.pml.

   Properties: one token has one holder; who was superseded before its look commits no more.

   Unsafe variants: PLAIN_PUT, EXISTS_IS_OURS (after a lost reply, what exists is taken for ours),
   NO_LOOK. */

#ifndef HOLDERS
#define HOLDERS 3
#endif
#define TOKENS 4

#ifdef PLAIN_PUT
#define ABSENT(token) true
#else
#define ABSENT(token) (claim[token] == 0)
#endif

/* Who made the claim of a number; 0 where there is none. */
byte claim[TOKENS + 2];
bit over[TOKENS + 2];
/* Who believes to hold a token. */
byte believers[TOKENS + 2];

proctype Holder(byte me)
{
  byte token;
  bit superseded;

  do
  :: break
  :: atomic {
       token = 1;
       do
       :: token <= TOKENS && claim[token] != 0 -> token++
       :: else -> break
       od
     };
     if
     :: token > TOKENS -> break
     :: token <= TOKENS && token > 1 && !over[token - 1] && claim[token - 1] != 0 ->
        goto again
     :: token <= TOKENS && (token == 1 || over[token - 1])
     fi;
     if
     :: atomic { ABSENT(token) -> claim[token] = me;
          printf("holder %d: claims token %d\n", me, token) }
     :: atomic { ABSENT(token) -> claim[token] = me;
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
     atomic {
       believers[token]++;
       printf("holder %d: holds token %d\n", me, token);
       assert(believers[token] == 1)
     };
     do
     :: atomic {
          superseded = (claim[token + 1] != 0);
#ifndef NO_LOOK
          if
          :: superseded -> printf("holder %d: superseded, stops\n", me); break
          :: else
          fi;
#endif
          assert(!superseded)
        };
        printf("holder %d: commits\n", me)
     :: atomic { over[token] = 1; printf("holder %d: released\n", me); break }
     od;
again:
     atomic { token = 0; superseded = 0 }
  od;
  token = 0; superseded = 0
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
    h = 0
  }
}

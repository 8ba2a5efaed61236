#define rand	pan_rand
#define pthread_equal(a,b)	((a)==(b))
#if defined(HAS_CODE) && defined(VERBOSE)
	#ifdef BFS_PAR
		bfs_printf("Pr: %d Tr: %d\n", II, t->forw);
	#else
		cpu_printf("Pr: %d Tr: %d\n", II, t->forw);
	#endif
#endif
	switch (t->forw) {
	default: Uerror("bad forward move");
	case 0:	/* if without executable clauses */
		continue;
	case 1: /* generic 'goto' or 'skip' */
		IfNotBlocked
		_m = 3; goto P999;
	case 2: /* generic 'else' */
		IfNotBlocked
		if (trpt->o_pm&1) continue;
		_m = 3; goto P999;

		 /* PROC :init: */
	case 3: // STATE 1 - fencing.pml:363 - [w = 1] (0:0:1 - 1)
		IfNotBlocked
		reached[2][1] = 1;
		(trpt+1)->bup.oval = ((int)((P2 *)_this)->w);
		((P2 *)_this)->w = 1;
#ifdef VAR_RANGES
		logval(":init::w", ((int)((P2 *)_this)->w));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 4: // STATE 2 - fencing.pml:365 - [((w<=3))] (0:0:0 - 1)
		IfNotBlocked
		reached[2][2] = 1;
		if (!((((int)((P2 *)_this)->w)<=3)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 5: // STATE 3 - fencing.pml:365 - [(run Writer(w))] (0:0:0 - 1)
		IfNotBlocked
		reached[2][3] = 1;
		if (!(addproc(II, 1, 0, ((int)((P2 *)_this)->w))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 6: // STATE 4 - fencing.pml:365 - [w = (w+1)] (0:0:1 - 1)
		IfNotBlocked
		reached[2][4] = 1;
		(trpt+1)->bup.oval = ((int)((P2 *)_this)->w);
		((P2 *)_this)->w = (((int)((P2 *)_this)->w)+1);
#ifdef VAR_RANGES
		logval(":init::w", ((int)((P2 *)_this)->w));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 7: // STATE 10 - fencing.pml:368 - [(run Collector())] (0:0:0 - 3)
		IfNotBlocked
		reached[2][10] = 1;
		if (!(addproc(II, 1, 1, 0)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 8: // STATE 11 - fencing.pml:369 - [w = 0] (0:0:1 - 1)
		IfNotBlocked
		reached[2][11] = 1;
		(trpt+1)->bup.oval = ((int)((P2 *)_this)->w);
		((P2 *)_this)->w = 0;
#ifdef VAR_RANGES
		logval(":init::w", ((int)((P2 *)_this)->w));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 9: // STATE 13 - fencing.pml:371 - [-end-] (0:0:0 - 1)
		IfNotBlocked
		reached[2][13] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* PROC Collector */
	case 10: // STATE 1 - fencing.pml:320 - [((round<2))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][1] = 1;
		if (!((((int)((P1 *)_this)->round)<2)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 11: // STATE 7 - fencing.pml:321 - [D_STEP321]
		IfNotBlocked

		reached[1][7] = 1;
		reached[1][t->st] = 1;
		reached[1][tt] = 1;

		if (TstOnly) return 1;

		sv_save();
		S_156_0: /* 2 */
		((P1 *)_this)->its_epoch = ((int)now.epoch);
#ifdef VAR_RANGES
		logval("Collector:its_epoch", ((int)((P1 *)_this)->its_epoch));
#endif
		;
S_157_0: /* 2 */
		((P1 *)_this)->its_replay = ((int)now.replay);
#ifdef VAR_RANGES
		logval("Collector:its_replay", ((int)((P1 *)_this)->its_replay));
#endif
		;
S_158_0: /* 2 */
		((P1 *)_this)->its_seen = ((int)now.seen);
#ifdef VAR_RANGES
		logval("Collector:its_seen", ((int)((P1 *)_this)->its_seen));
#endif
		;
S_159_0: /* 2 */
		((P1 *)_this)->its_generation = ((int)now.generation);
#ifdef VAR_RANGES
		logval("Collector:its_generation", ((int)((P1 *)_this)->its_generation));
#endif
		;
S_160_0: /* 2 */
		((P1 *)_this)->round = (((int)((P1 *)_this)->round)+1);
#ifdef VAR_RANGES
		logval("Collector:round", ((int)((P1 *)_this)->round));
#endif
		;
		goto S_252_0;
S_252_0: /* 1 */

#if defined(C_States) && (HAS_TRACK==1)
		c_update((uchar *) &(now.c_state[0]));
#endif
		_m = 3; goto P999;

	case 12: // STATE 98 - fencing.pml:325 - [D_STEP325]
		IfNotBlocked

		reached[1][98] = 1;
		reached[1][t->st] = 1;
		reached[1][tt] = 1;

		if (TstOnly) return 1;


		reached[1][98] = 1;
		reached[1][t->st] = 1;
		reached[1][tt] = 1;

		sv_save();
		S_247_0: /* 2 */
S_162_0: /* 2 */
		((P1 *)_this)->highest = 7;
#ifdef VAR_RANGES
		logval("Collector:highest", ((int)((P1 *)_this)->highest));
#endif
		;
S_168_0: /* 2 */
S_167_0: /* 2 */
S_163_0: /* 2 */
		if (!(((((int)((P1 *)_this)->highest)>0)&&(((int)now.writer_of[ Index(((int)((P1 *)_this)->highest), 9) ])==0))))
			goto S_167_1;
S_164_0: /* 2 */
		((P1 *)_this)->highest = (((int)((P1 *)_this)->highest)-1);
#ifdef VAR_RANGES
		logval("Collector:highest", ((int)((P1 *)_this)->highest));
#endif
		;
		goto S_168_0; /* ';' */
S_167_1: /* 3 */
S_165_0: /* 2 */
		/* else */;
S_166_0: /* 2 */
		goto S_170_0;	/* 'goto' */
S_167_2: /* 3 */
		Uerror("blocking sel in d_step (nr.0, near line 245)");
S_169_0: /* 2 */
		goto S_170_0;	/* 'break' */
S_170_0: /* 2 */
		((P1 *)_this)->finished = 0;
#ifdef VAR_RANGES
		logval("Collector:finished", ((P1 *)_this)->finished);
#endif
		;
S_171_0: /* 2 */
		((P1 *)_this)->p = 1;
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
S_182_0: /* 2 */
S_181_0: /* 2 */
S_172_0: /* 2 */
		if (!((((int)((P1 *)_this)->p)<=7)))
			goto S_181_1;
S_176_0: /* 2 */
S_173_0: /* 2 */
		if (!((((((((int)now.writer_of[ Index(((int)((P1 *)_this)->p), 9) ])!=0)&&(((int)((P1 *)_this)->p)<=((int)((P1 *)_this)->its_replay)))&&(((int)((P1 *)_this)->p)<=((int)((P1 *)_this)->its_seen)))&&(((int)((P1 *)_this)->p)!=((int)((P1 *)_this)->highest)))&&1)))
			goto S_176_1;
S_174_0: /* 2 */
		((P1 *)_this)->finished = (((P1 *)_this)->finished|(1<<((int)now.writer_of[ Index(((int)((P1 *)_this)->p), 9) ])));
#ifdef VAR_RANGES
		logval("Collector:finished", ((P1 *)_this)->finished);
#endif
		;
		goto S_177_0;
S_176_1: /* 3 */
S_175_0: /* 2 */
		/* else */;
		goto S_177_0;
S_176_2: /* 3 */
		Uerror("blocking sel in d_step (nr.1, near line 255)");
S_177_0: /* 2 */
S_178_0: /* 2 */
		((P1 *)_this)->p = (((int)((P1 *)_this)->p)+1);
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
		goto S_182_0; /* ';' */
S_181_1: /* 3 */
S_179_0: /* 2 */
		/* else */;
S_180_0: /* 2 */
		goto S_184_0;	/* 'goto' */
S_181_2: /* 3 */
		Uerror("blocking sel in d_step (nr.2, near line 253)");
S_183_0: /* 2 */
		goto S_184_0;	/* 'break' */
S_184_0: /* 2 */
		((P1 *)_this)->claim = ((int)((P1 *)_this)->its_epoch);
#ifdef VAR_RANGES
		logval("Collector:claim", ((int)((P1 *)_this)->claim));
#endif
		;
S_188_0: /* 2 */
S_185_0: /* 2 */
		if (!((((int)((P1 *)_this)->claim)>0)))
			goto S_188_1;
S_186_0: /* 2 */
		((P1 *)_this)->claim = (((int)((P1 *)_this)->claim)-1);
#ifdef VAR_RANGES
		logval("Collector:claim", ((int)((P1 *)_this)->claim));
#endif
		;
		goto S_189_0;
S_188_1: /* 3 */
S_187_0: /* 2 */
		/* else */;
		goto S_189_0;
S_188_2: /* 3 */
		Uerror("blocking sel in d_step (nr.3, near line 264)");
S_189_0: /* 2 */
S_195_0: /* 2 */
S_194_0: /* 2 */
S_190_0: /* 2 */
		if (!(((((int)((P1 *)_this)->claim)>0)&&(((P1 *)_this)->finished&(1<<((int)((P1 *)_this)->claim))))))
			goto S_194_1;
S_191_0: /* 2 */
		((P1 *)_this)->claim = (((int)((P1 *)_this)->claim)-1);
#ifdef VAR_RANGES
		logval("Collector:claim", ((int)((P1 *)_this)->claim));
#endif
		;
		goto S_195_0; /* ';' */
S_194_1: /* 3 */
S_192_0: /* 2 */
		/* else */;
S_193_0: /* 2 */
		goto S_197_0;	/* 'goto' */
S_194_2: /* 3 */
		Uerror("blocking sel in d_step (nr.4, near line 268)");
S_196_0: /* 2 */
		goto S_197_0;	/* 'break' */
S_197_0: /* 2 */
		((P1 *)_this)->held = 0;
#ifdef VAR_RANGES
		logval("Collector:held", ((int)((P1 *)_this)->held));
#endif
		;
S_198_0: /* 2 */
		((P1 *)_this)->newest = 0;
#ifdef VAR_RANGES
		logval("Collector:newest", ((int)((P1 *)_this)->newest));
#endif
		;
S_199_0: /* 2 */
		((P1 *)_this)->p = 7;
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
S_203_0: /* 2 */
S_200_0: /* 2 */
		if (!((((int)((P1 *)_this)->claim)>0)))
			goto S_203_1;
S_201_0: /* 2 */
		((P1 *)_this)->held = 7;
#ifdef VAR_RANGES
		logval("Collector:held", ((int)((P1 *)_this)->held));
#endif
		;
		goto S_204_0;
S_203_1: /* 3 */
S_202_0: /* 2 */
		/* else */;
		goto S_204_0;
S_203_2: /* 3 */
		Uerror("blocking sel in d_step (nr.5, near line 275)");
S_204_0: /* 2 */
S_224_0: /* 2 */
S_223_0: /* 2 */
S_205_0: /* 2 */
		if (!((((int)((P1 *)_this)->p)>0)))
			goto S_223_1;
S_218_0: /* 2 */
S_206_0: /* 2 */
		if (!((((now.sentinels&(1<<((int)((P1 *)_this)->p)))!=0)&&(((int)now.writer_of[ Index(((int)((P1 *)_this)->p), 9) ])!=0))))
			goto S_218_1;
S_210_0: /* 2 */
S_207_0: /* 2 */
		if (!((((((((int)((P1 *)_this)->claim)>0)&&(((int)now.writer_of[ Index(((int)((P1 *)_this)->p), 9) ])>((int)((P1 *)_this)->claim)))&&(((int)((P1 *)_this)->p)<=((int)((P1 *)_this)->its_replay)))&&(((int)((P1 *)_this)->p)<=((int)((P1 *)_this)->its_seen)))&&(((int)((P1 *)_this)->p)!=((int)((P1 *)_this)->highest)))))
			goto S_210_1;
S_208_0: /* 2 */
		((P1 *)_this)->held = ((int)((P1 *)_this)->p);
#ifdef VAR_RANGES
		logval("Collector:held", ((int)((P1 *)_this)->held));
#endif
		;
		goto S_211_0;
S_210_1: /* 3 */
S_209_0: /* 2 */
		/* else */;
		goto S_211_0;
S_210_2: /* 3 */
		Uerror("blocking sel in d_step (nr.6, near line 283)");
S_211_0: /* 2 */
S_215_0: /* 2 */
S_212_0: /* 2 */
		if (!(((((int)((P1 *)_this)->newest)==0)||(((int)now.writer_of[ Index(((int)((P1 *)_this)->p), 9) ])>((int)now.writer_of[ Index(((int)((P1 *)_this)->newest), 9) ])))))
			goto S_215_1;
S_213_0: /* 2 */
		((P1 *)_this)->newest = ((int)((P1 *)_this)->p);
#ifdef VAR_RANGES
		logval("Collector:newest", ((int)((P1 *)_this)->newest));
#endif
		;
		goto S_216_0;
S_215_1: /* 3 */
S_214_0: /* 2 */
		/* else */;
		goto S_216_0;
S_215_2: /* 3 */
		Uerror("blocking sel in d_step (nr.7, near line 288)");
S_216_0: /* 2 */
		goto S_219_0;
S_218_1: /* 3 */
S_217_0: /* 2 */
		/* else */;
		goto S_219_0;
S_218_2: /* 3 */
		Uerror("blocking sel in d_step (nr.8, near line 281)");
S_219_0: /* 2 */
S_220_0: /* 2 */
		((P1 *)_this)->p = (((int)((P1 *)_this)->p)-1);
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
		goto S_224_0; /* ';' */
S_223_1: /* 3 */
S_221_0: /* 2 */
		/* else */;
S_222_0: /* 2 */
		goto S_226_0;	/* 'goto' */
S_223_2: /* 3 */
		Uerror("blocking sel in d_step (nr.9, near line 279)");
S_225_0: /* 2 */
		goto S_226_0;	/* 'break' */
S_226_0: /* 2 */
		((P1 *)_this)->held = ((int)((P1 *)_this)->held);
#ifdef VAR_RANGES
		logval("Collector:held", ((int)((P1 *)_this)->held));
#endif
		;
S_227_0: /* 2 */
		((P1 *)_this)->doomed = 0;
#ifdef VAR_RANGES
		logval("Collector:doomed", ((P1 *)_this)->doomed);
#endif
		;
S_228_0: /* 2 */
		((P1 *)_this)->p = 1;
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
S_239_0: /* 2 */
S_238_0: /* 2 */
S_229_0: /* 2 */
		if (!((((int)((P1 *)_this)->p)<=7)))
			goto S_238_1;
S_233_0: /* 2 */
S_230_0: /* 2 */
		if (!(((((((((int)now.writer_of[ Index(((int)((P1 *)_this)->p), 9) ])!=0)&&((((int)((P1 *)_this)->p)<=((int)((P1 *)_this)->its_replay))&&(((int)now.generation_of[ Index(((int)((P1 *)_this)->p), 9) ])<((int)((P1 *)_this)->its_generation))))&&(((int)((P1 *)_this)->p)<=((int)((P1 *)_this)->its_seen)))&&(((int)((P1 *)_this)->p)!=((int)((P1 *)_this)->highest)))&& !(((now.sentinels&(1<<((int)((P1 *)_this)->p)))!=0)))&&(((int)((P1 *)_this)->p)>((int)((P1 *)_this)->held)))))
			goto S_233_1;
S_231_0: /* 2 */
		((P1 *)_this)->doomed = (((P1 *)_this)->doomed|(1<<((int)((P1 *)_this)->p)));
#ifdef VAR_RANGES
		logval("Collector:doomed", ((P1 *)_this)->doomed);
#endif
		;
		goto S_234_0;
S_233_1: /* 3 */
S_232_0: /* 2 */
		/* else */;
		goto S_234_0;
S_233_2: /* 3 */
		Uerror("blocking sel in d_step (nr.10, near line 302)");
S_234_0: /* 2 */
S_235_0: /* 2 */
		((P1 *)_this)->p = (((int)((P1 *)_this)->p)+1);
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
		goto S_239_0; /* ';' */
S_238_1: /* 3 */
S_236_0: /* 2 */
		/* else */;
S_237_0: /* 2 */
		goto S_241_0;	/* 'goto' */
S_238_2: /* 3 */
		Uerror("blocking sel in d_step (nr.11, near line 300)");
S_240_0: /* 2 */
		goto S_241_0;	/* 'break' */
S_241_0: /* 2 */
		((P1 *)_this)->p = 1;
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
S_242_0: /* 2 */
		((P1 *)_this)->highest = 0;
#ifdef VAR_RANGES
		logval("Collector:highest", ((int)((P1 *)_this)->highest));
#endif
		;
S_243_0: /* 2 */
		((P1 *)_this)->finished = 0;
#ifdef VAR_RANGES
		logval("Collector:finished", ((P1 *)_this)->finished);
#endif
		;
S_244_0: /* 2 */
		((P1 *)_this)->claim = 0;
#ifdef VAR_RANGES
		logval("Collector:claim", ((int)((P1 *)_this)->claim));
#endif
		;
S_245_0: /* 2 */
		((P1 *)_this)->held = 0;
#ifdef VAR_RANGES
		logval("Collector:held", ((int)((P1 *)_this)->held));
#endif
		;
S_246_0: /* 2 */
		((P1 *)_this)->newest = 0;
#ifdef VAR_RANGES
		logval("Collector:newest", ((int)((P1 *)_this)->newest));
#endif
		;
		goto S_248_0;
S_248_0: /* 2 */
		((P1 *)_this)->its_epoch = 0;
#ifdef VAR_RANGES
		logval("Collector:its_epoch", ((int)((P1 *)_this)->its_epoch));
#endif
		;
S_249_0: /* 2 */
		((P1 *)_this)->its_replay = 0;
#ifdef VAR_RANGES
		logval("Collector:its_replay", ((int)((P1 *)_this)->its_replay));
#endif
		;
S_250_0: /* 2 */
		((P1 *)_this)->its_seen = 0;
#ifdef VAR_RANGES
		logval("Collector:its_seen", ((int)((P1 *)_this)->its_seen));
#endif
		;
S_251_0: /* 2 */
		((P1 *)_this)->its_generation = 0;
#ifdef VAR_RANGES
		logval("Collector:its_generation", ((int)((P1 *)_this)->its_generation));
#endif
		;
		goto S_277_0;
S_277_0: /* 1 */

#if defined(C_States) && (HAS_TRACK==1)
		c_update((uchar *) &(now.c_state[0]));
#endif
		_m = 3; goto P999;

	case 13: // STATE 99 - fencing.pml:331 - [((p<=7))] (0:0:0 - 1)
		IfNotBlocked
		reached[1][99] = 1;
		if (!((((int)((P1 *)_this)->p)<=7)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 14: // STATE 116 - fencing.pml:333 - [D_STEP333]
		if (!(boq == -1 && (((P1 *)_this)->doomed&(1<<((int)((P1 *)_this)->p)))))
			continue;

		reached[1][116] = 1;
		reached[1][t->st] = 1;
		reached[1][tt] = 1;

		if (TstOnly) return 1;

		sv_save();
		S_254_0: /* 2 */
		if (!((((P1 *)_this)->doomed&(1<<((int)((P1 *)_this)->p)))))
			Uerror("block in d_step seq");
S_263_0: /* 2 */
S_255_0: /* 2 */
		if (!((((int)now.writer_of[ Index(((int)((P1 *)_this)->p), 9) ])!=0)))
			goto S_263_1;
S_260_0: /* 2 */
S_256_0: /* 2 */
		if (!(((now.sentinels&(1<<((int)((P1 *)_this)->p)))!=0)))
			goto S_260_1;
S_257_0: /* 2 */
		Printf("collector: deletes the sentinel at position %d\n", ((int)((P1 *)_this)->p));
		goto S_261_0;
S_260_1: /* 3 */
S_258_0: /* 2 */
		/* else */;
S_259_0: /* 2 */
		Printf("collector: deletes the entry at position %d\n", ((int)((P1 *)_this)->p));
		goto S_261_0;
S_260_2: /* 3 */
		Uerror("blocking sel in d_step (nr.12, near line 337)");
S_261_0: /* 2 */
		goto S_264_0;
S_263_1: /* 3 */
S_262_0: /* 2 */
		/* else */;
		goto S_264_0;
S_263_2: /* 3 */
		Uerror("blocking sel in d_step (nr.13, near line 335)");
S_264_0: /* 2 */
S_265_0: /* 2 */
		spin_assert( !((now.owed&(1<<((int)((P1 *)_this)->p)))), " !((owed&(1<<p)))", II, tt, t);
S_266_0: /* 2 */
		now.writer_of[ Index(((P1 *)_this)->p, 9) ] = 0;
#ifdef VAR_RANGES
		logval("writer_of[Collector:p]", ((int)now.writer_of[ Index(((int)((P1 *)_this)->p), 9) ]));
#endif
		;
S_267_0: /* 2 */
		now.generation_of[ Index(((P1 *)_this)->p, 9) ] = 0;
#ifdef VAR_RANGES
		logval("generation_of[Collector:p]", ((int)now.generation_of[ Index(((int)((P1 *)_this)->p), 9) ]));
#endif
		;
S_268_0: /* 2 */
		now.sentinels = (now.sentinels& ~((1<<((int)((P1 *)_this)->p))));
#ifdef VAR_RANGES
		logval("sentinels", now.sentinels);
#endif
		;
S_269_0: /* 2 */
		((P1 *)_this)->p = (((int)((P1 *)_this)->p)+1);
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
		goto S_273_0;
S_273_0: /* 1 */

#if defined(C_States) && (HAS_TRACK==1)
		c_update((uchar *) &(now.c_state[0]));
#endif
		_m = 3; goto P999;

	case 15: // STATE 117 - fencing.pml:349 - [p = (p+1)] (0:0:1 - 1)
		IfNotBlocked
		reached[1][117] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->p);
		((P1 *)_this)->p = (((int)((P1 *)_this)->p)+1);
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 16: // STATE 120 - fencing.pml:351 - [((p>7))] (129:0:3 - 1)
		IfNotBlocked
		reached[1][120] = 1;
		if (!((((int)((P1 *)_this)->p)>7)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: p */  (trpt+1)->bup.ovals = grab_ints(3);
		(trpt+1)->bup.ovals[0] = ((P1 *)_this)->p;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P1 *)_this)->p = 0;
		/* merge: goto :b13(129, 121, 129) */
		reached[1][121] = 1;
		;
		/* merge: p = 0(129, 125, 129) */
		reached[1][125] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P1 *)_this)->p);
		((P1 *)_this)->p = 0;
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
		/* merge: doomed = 0(129, 126, 129) */
		reached[1][126] = 1;
		(trpt+1)->bup.ovals[2] = ((P1 *)_this)->doomed;
		((P1 *)_this)->doomed = 0;
#ifdef VAR_RANGES
		logval("Collector:doomed", ((P1 *)_this)->doomed);
#endif
		;
		/* merge: .(goto)(0, 130, 129) */
		reached[1][130] = 1;
		;
		_m = 3; goto P999; /* 4 */
	case 17: // STATE 125 - fencing.pml:353 - [p = 0] (0:129:2 - 3)
		IfNotBlocked
		reached[1][125] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)((P1 *)_this)->p);
		((P1 *)_this)->p = 0;
#ifdef VAR_RANGES
		logval("Collector:p", ((int)((P1 *)_this)->p));
#endif
		;
		/* merge: doomed = 0(129, 126, 129) */
		reached[1][126] = 1;
		(trpt+1)->bup.ovals[1] = ((P1 *)_this)->doomed;
		((P1 *)_this)->doomed = 0;
#ifdef VAR_RANGES
		logval("Collector:doomed", ((P1 *)_this)->doomed);
#endif
		;
		/* merge: .(goto)(0, 130, 129) */
		reached[1][130] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 18: // STATE 132 - fencing.pml:356 - [round = 0] (0:133:1 - 3)
		IfNotBlocked
		reached[1][132] = 1;
		(trpt+1)->bup.oval = ((int)((P1 *)_this)->round);
		((P1 *)_this)->round = 0;
#ifdef VAR_RANGES
		logval("Collector:round", ((int)((P1 *)_this)->round));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 19: // STATE 133 - fencing.pml:357 - [-end-] (0:0:0 - 1)
		IfNotBlocked
		reached[1][133] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */

		 /* PROC Writer */
	case 20: // STATE 6 - fencing.pml:124 - [D_STEP124]
		if (!(boq == -1 && (((int)now.epoch)==(((int)((P0 *)_this)->mine)-1))))
			continue;

		reached[0][6] = 1;
		reached[0][t->st] = 1;
		reached[0][tt] = 1;

		if (TstOnly) return 1;

		sv_save();
		S_000_0: /* 2 */
		if (!((((int)now.epoch)==(((int)((P0 *)_this)->mine)-1))))
			Uerror("block in d_step seq");
S_001_0: /* 2 */
		now.epoch = ((int)((P0 *)_this)->mine);
#ifdef VAR_RANGES
		logval("epoch", ((int)now.epoch));
#endif
		;
S_002_0: /* 2 */
		((P0 *)_this)->current = ((int)now.generation);
#ifdef VAR_RANGES
		logval("Writer:current", ((int)((P0 *)_this)->current));
#endif
		;
S_003_0: /* 2 */
		Printf("writer %d: claimed epoch %d; its manifest covers up to %d, last seen %d\n", ((int)((P0 *)_this)->mine), ((int)((P0 *)_this)->mine), ((int)now.replay), ((int)now.seen));
S_004_0: /* 2 */
		((P0 *)_this)->i = (((int)now.replay)+1);
#ifdef VAR_RANGES
		logval("Writer:i", ((int)((P0 *)_this)->i));
#endif
		;
		goto S_053_0;
S_053_0: /* 1 */

#if defined(C_States) && (HAS_TRACK==1)
		c_update((uchar *) &(now.c_state[0]));
#endif
		_m = 3; goto P999;

	case 21: // STATE 7 - fencing.pml:136 - [((mine==1))] (78:0:2 - 1)
		IfNotBlocked
		reached[0][7] = 1;
		if (!((((int)((P0 *)_this)->mine)==1)))
			continue;
		/* merge: .(goto)(78, 55, 78) */
		reached[0][55] = 1;
		;
		/* merge: position = i(78, 56, 78) */
		reached[0][56] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)((P0 *)_this)->position);
		((P0 *)_this)->position = ((int)((P0 *)_this)->i);
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
		/* merge: i = 0(78, 57, 78) */
		reached[0][57] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->i);
		((P0 *)_this)->i = 0;
#ifdef VAR_RANGES
		logval("Writer:i", ((int)((P0 *)_this)->i));
#endif
		;
		/* merge: .(goto)(0, 79, 78) */
		reached[0][79] = 1;
		;
		_m = 3; goto P999; /* 4 */
	case 22: // STATE 9 - fencing.pml:98 - [hint = seen] (0:0:1 - 1)
		IfNotBlocked
		reached[0][9] = 1;
		(trpt+1)->bup.oval = ((int)((P0 *)_this)->hint);
		((P0 *)_this)->hint = ((int)now.seen);
#ifdef VAR_RANGES
		logval("Writer:hint", ((int)((P0 *)_this)->hint));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 23: // STATE 11 - fencing.pml:100 - [(((hint>0)&&(writer_of[hint]!=0)))] (21:0:2 - 1)
		IfNotBlocked
		reached[0][11] = 1;
		if (!(((((int)((P0 *)_this)->hint)>0)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->hint), 9) ])!=0))))
			continue;
		/* merge: position = (hint+1)(21, 12, 21) */
		reached[0][12] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)((P0 *)_this)->position);
		((P0 *)_this)->position = (((int)((P0 *)_this)->hint)+1);
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
		/* merge: hint = 0(21, 13, 21) */
		reached[0][13] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->hint);
		((P0 *)_this)->hint = 0;
#ifdef VAR_RANGES
		logval("Writer:hint", ((int)((P0 *)_this)->hint));
#endif
		;
		/* merge: .(goto)(0, 22, 21) */
		reached[0][22] = 1;
		;
		_m = 3; goto P999; /* 3 */
	case 24: // STATE 15 - fencing.pml:102 - [(((position<=7)&&(writer_of[position]!=0)))] (21:0:1 - 1)
		IfNotBlocked
		reached[0][15] = 1;
		if (!(((((int)((P0 *)_this)->position)<=7)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])!=0))))
			continue;
		/* merge: position = (position+1)(0, 16, 21) */
		reached[0][16] = 1;
		(trpt+1)->bup.oval = ((int)((P0 *)_this)->position);
		((P0 *)_this)->position = (((int)((P0 *)_this)->position)+1);
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
		/* merge: .(goto)(0, 22, 21) */
		reached[0][22] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 25: // STATE 18 - fencing.pml:103 - [(((position>7)||(writer_of[position]==0)))] (49:0:0 - 1)
		IfNotBlocked
		reached[0][18] = 1;
		if (!(((((int)((P0 *)_this)->position)>7)||(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])==0))))
			continue;
		/* merge: goto :b1(0, 19, 49) */
		reached[0][19] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 26: // STATE 35 - fencing.pml:105 - [D_STEP105]
		if (!(boq == -1 && ((((int)((P0 *)_this)->hint)==0)||(((int)now.writer_of[ Index(((int)((P0 *)_this)->hint), 9) ])==0))))
			continue;

		reached[0][35] = 1;
		reached[0][t->st] = 1;
		reached[0][tt] = 1;

		if (TstOnly) return 1;

		sv_save();
		S_023_0: /* 2 */
		if (!(((((int)((P0 *)_this)->hint)==0)||(((int)now.writer_of[ Index(((int)((P0 *)_this)->hint), 9) ])==0))))
			Uerror("block in d_step seq");
S_024_0: /* 2 */
		((P0 *)_this)->position = 7;
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
S_030_0: /* 2 */
S_029_0: /* 2 */
S_025_0: /* 2 */
		if (!(((((int)((P0 *)_this)->position)>0)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])==0))))
			goto S_029_1;
S_026_0: /* 2 */
		((P0 *)_this)->position = (((int)((P0 *)_this)->position)-1);
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
		goto S_030_0; /* ';' */
S_029_1: /* 3 */
S_027_0: /* 2 */
		/* else */;
S_028_0: /* 2 */
		goto S_032_0;	/* 'goto' */
S_029_2: /* 3 */
		Uerror("blocking sel in d_step (nr.14, near line 108)");
S_031_0: /* 2 */
		goto S_032_0;	/* 'break' */
S_032_0: /* 2 */
		((P0 *)_this)->position = (((int)((P0 *)_this)->position)+1);
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
S_033_0: /* 2 */
		((P0 *)_this)->hint = 0;
#ifdef VAR_RANGES
		logval("Writer:hint", ((int)((P0 *)_this)->hint));
#endif
		;
		goto S_036_0;
S_036_0: /* 1 */

#if defined(C_States) && (HAS_TRACK==1)
		c_update((uchar *) &(now.c_state[0]));
#endif
		_m = 3; goto P999;

	case 27: // STATE 39 - fencing.pml:141 - [((position>7))] (0:0:1 - 1)
		IfNotBlocked
		reached[0][39] = 1;
		if (!((((int)((P0 *)_this)->position)>7)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: position */  (trpt+1)->bup.oval = ((P0 *)_this)->position;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P0 *)_this)->position = 0;
		_m = 3; goto P999; /* 0 */
	case 28: // STATE 46 - fencing.pml:142 - [D_STEP142]
		if (!(boq == -1 && ((((int)((P0 *)_this)->position)<=7)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])==0))))
			continue;

		reached[0][46] = 1;
		reached[0][t->st] = 1;
		reached[0][tt] = 1;

		if (TstOnly) return 1;

		sv_save();
		S_040_0: /* 2 */
		if (!(((((int)((P0 *)_this)->position)<=7)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])==0))))
			Uerror("block in d_step seq");
S_041_0: /* 2 */
		now.writer_of[ Index(((P0 *)_this)->position, 9) ] = ((int)((P0 *)_this)->mine);
#ifdef VAR_RANGES
		logval("writer_of[Writer:position]", ((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ]));
#endif
		;
S_042_0: /* 2 */
		now.generation_of[ Index(((P0 *)_this)->position, 9) ] = 0;
#ifdef VAR_RANGES
		logval("generation_of[Writer:position]", ((int)now.generation_of[ Index(((int)((P0 *)_this)->position), 9) ]));
#endif
		;
S_043_0: /* 2 */
		now.sentinels = (now.sentinels|(1<<((int)((P0 *)_this)->position)));
#ifdef VAR_RANGES
		logval("sentinels", now.sentinels);
#endif
		;
S_044_0: /* 2 */
		Printf("writer %d: sentinel at position %d\n", ((int)((P0 *)_this)->mine), ((int)((P0 *)_this)->position));
		goto S_046_0;
S_046_0: /* 1 */

#if defined(C_States) && (HAS_TRACK==1)
		c_update((uchar *) &(now.c_state[0]));
#endif
		_m = 3; goto P999;

	case 29: // STATE 48 - fencing.pml:150 - [(((position<=7)&&!((writer_of[position]==0))))] (0:0:1 - 1)
		IfNotBlocked
		reached[0][48] = 1;
		if (!(((((int)((P0 *)_this)->position)<=7)&& !((((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])==0)))))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: position */  (trpt+1)->bup.oval = ((P0 *)_this)->position;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P0 *)_this)->position = 0;
		_m = 3; goto P999; /* 0 */
	case 30: // STATE 56 - fencing.pml:156 - [position = i] (0:78:2 - 5)
		IfNotBlocked
		reached[0][56] = 1;
		(trpt+1)->bup.ovals = grab_ints(2);
		(trpt+1)->bup.ovals[0] = ((int)((P0 *)_this)->position);
		((P0 *)_this)->position = ((int)((P0 *)_this)->i);
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
		/* merge: i = 0(78, 57, 78) */
		reached[0][57] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->i);
		((P0 *)_this)->i = 0;
#ifdef VAR_RANGES
		logval("Writer:i", ((int)((P0 *)_this)->i));
#endif
		;
		/* merge: .(goto)(0, 79, 78) */
		reached[0][79] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 31: // STATE 58 - fencing.pml:159 - [((position>7))] (150:0:1 - 1)
		IfNotBlocked
		reached[0][58] = 1;
		if (!((((int)((P0 *)_this)->position)>7)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: position */  (trpt+1)->bup.oval = ((P0 *)_this)->position;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P0 *)_this)->position = 0;
		/* merge: goto over(0, 59, 150) */
		reached[0][59] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 32: // STATE 61 - fencing.pml:160 - [(((position<=7)&&(writer_of[position]>mine)))] (150:0:0 - 1)
		IfNotBlocked
		reached[0][61] = 1;
		if (!(((((int)((P0 *)_this)->position)<=7)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])>((int)((P0 *)_this)->mine)))))
			continue;
		/* merge: printf('writer %d: met epoch %d at position %d: fenced\\n',mine,writer_of[position],position)(150, 62, 150) */
		reached[0][62] = 1;
		Printf("writer %d: met epoch %d at position %d: fenced\n", ((int)((P0 *)_this)->mine), ((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ]), ((int)((P0 *)_this)->position));
		/* merge: goto over(150, 63, 150) */
		reached[0][63] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 33: // STATE 73 - fencing.pml:164 - [D_STEP164]
		if (!(boq == -1 && (((((int)((P0 *)_this)->position)<=7)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])!=0))&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])<=((int)((P0 *)_this)->mine)))))
			continue;

		reached[0][73] = 1;
		reached[0][t->st] = 1;
		reached[0][tt] = 1;

		if (TstOnly) return 1;

		sv_save();
		S_064_0: /* 2 */
		if (!((((((int)((P0 *)_this)->position)<=7)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])!=0))&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])<=((int)((P0 *)_this)->mine)))))
			Uerror("block in d_step seq");
S_069_0: /* 2 */
S_065_0: /* 2 */
		if (!(( !(((now.sentinels&(1<<((int)((P0 *)_this)->position)))!=0))&&(((int)now.generation_of[ Index(((int)((P0 *)_this)->position), 9) ])>=((int)((P0 *)_this)->current)))))
			goto S_069_1;
S_066_0: /* 2 */
		((P0 *)_this)->memtable = (((P0 *)_this)->memtable|(1<<((int)((P0 *)_this)->position)));
#ifdef VAR_RANGES
		logval("Writer:memtable", ((P0 *)_this)->memtable);
#endif
		;
S_067_0: /* 2 */
		Printf("writer %d: replayed position %d\n", ((int)((P0 *)_this)->mine), ((int)((P0 *)_this)->position));
		goto S_070_0;
S_069_1: /* 3 */
S_068_0: /* 2 */
		/* else */;
		goto S_070_0;
S_069_2: /* 3 */
		Uerror("blocking sel in d_step (nr.15, near line 166)");
S_070_0: /* 2 */
S_071_0: /* 2 */
		((P0 *)_this)->position = (((int)((P0 *)_this)->position)+1);
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
		goto S_078_0;
S_078_0: /* 1 */

#if defined(C_States) && (HAS_TRACK==1)
		c_update((uchar *) &(now.c_state[0]));
#endif
		_m = 3; goto P999;

	case 34: // STATE 76 - fencing.pml:174 - [D_STEP174]
		if (!(boq == -1 && ((((int)((P0 *)_this)->position)<=7)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])==0))))
			continue;

		reached[0][76] = 1;
		reached[0][t->st] = 1;
		reached[0][tt] = 1;

		if (TstOnly) return 1;

		sv_save();
		S_073_0: /* 2 */
		if (!(((((int)((P0 *)_this)->position)<=7)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])==0))))
			Uerror("block in d_step seq");
S_074_0: /* 2 */
		Printf("writer %d: replay ends at position %d, which is missing\n", ((int)((P0 *)_this)->mine), ((int)((P0 *)_this)->position));
		goto S_076_0;
S_076_0: /* 1 */

#if defined(C_States) && (HAS_TRACK==1)
		c_update((uchar *) &(now.c_state[0]));
#endif
		_m = 3; goto P999;

	case 35: // STATE 81 - fencing.pml:180 - [((position>7))] (0:0:1 - 1)
		IfNotBlocked
		reached[0][81] = 1;
		if (!((((int)((P0 *)_this)->position)>7)))
			continue;
		if (TstOnly) return 1; /* TT */
		/* dead 1: position */  (trpt+1)->bup.oval = ((P0 *)_this)->position;
#ifdef HAS_CODE
		if (!readtrail)
#endif
			((P0 *)_this)->position = 0;
		_m = 3; goto P999; /* 0 */
	case 36: // STATE 103 - fencing.pml:181 - [D_STEP181]
		if (!(boq == -1 && ((((int)((P0 *)_this)->position)<=7)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])==0))))
			continue;

		reached[0][103] = 1;
		reached[0][t->st] = 1;
		reached[0][tt] = 1;

		if (TstOnly) return 1;

		sv_save();
		S_082_0: /* 2 */
		if (!(((((int)((P0 *)_this)->position)<=7)&&(((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])==0))))
			Uerror("block in d_step seq");
S_083_0: /* 2 */
		now.writer_of[ Index(((P0 *)_this)->position, 9) ] = ((int)((P0 *)_this)->mine);
#ifdef VAR_RANGES
		logval("writer_of[Writer:position]", ((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ]));
#endif
		;
S_084_0: /* 2 */
		now.generation_of[ Index(((P0 *)_this)->position, 9) ] = ((int)((P0 *)_this)->current);
#ifdef VAR_RANGES
		logval("generation_of[Writer:position]", ((int)now.generation_of[ Index(((int)((P0 *)_this)->position), 9) ]));
#endif
		;
S_085_0: /* 2 */
		Printf("writer %d: put at position %d is acknowledged\n", ((int)((P0 *)_this)->mine), ((int)((P0 *)_this)->position));
S_098_0: /* 2 */
S_086_0: /* 2 */
		spin_assert((((int)((P0 *)_this)->position)>((int)now.replay)), "(position>replay)", II, tt, t);
S_087_0: /* 2 */
		spin_assert((((int)now.generation_of[ Index(((int)((P0 *)_this)->position), 9) ])>=((int)now.generation)), "(generation_of[position]>=generation)", II, tt, t);
S_088_0: /* 2 */
		((P0 *)_this)->i = (((int)now.replay)+1);
#ifdef VAR_RANGES
		logval("Writer:i", ((int)((P0 *)_this)->i));
#endif
		;
S_095_0: /* 2 */
S_094_0: /* 2 */
S_089_0: /* 2 */
		if (!((((int)((P0 *)_this)->i)<((int)((P0 *)_this)->position))))
			goto S_094_1;
S_090_0: /* 2 */
		spin_assert((((int)now.writer_of[ Index(((int)((P0 *)_this)->i), 9) ])!=0), "(writer_of[i]!=0)", II, tt, t);
S_091_0: /* 2 */
		((P0 *)_this)->i = (((int)((P0 *)_this)->i)+1);
#ifdef VAR_RANGES
		logval("Writer:i", ((int)((P0 *)_this)->i));
#endif
		;
		goto S_095_0; /* ';' */
S_094_1: /* 3 */
S_092_0: /* 2 */
		/* else */;
S_093_0: /* 2 */
		goto S_097_0;	/* 'goto' */
S_094_2: /* 3 */
		Uerror("blocking sel in d_step (nr.16, near line 89)");
S_096_0: /* 2 */
		goto S_097_0;	/* 'break' */
S_097_0: /* 2 */
		((P0 *)_this)->i = 0;
#ifdef VAR_RANGES
		logval("Writer:i", ((int)((P0 *)_this)->i));
#endif
		;
		goto S_099_0;
S_099_0: /* 2 */
		((P0 *)_this)->memtable = (((P0 *)_this)->memtable|(1<<((int)((P0 *)_this)->position)));
#ifdef VAR_RANGES
		logval("Writer:memtable", ((P0 *)_this)->memtable);
#endif
		;
S_100_0: /* 2 */
		now.owed = (now.owed|(1<<((int)((P0 *)_this)->position)));
#ifdef VAR_RANGES
		logval("owed", now.owed);
#endif
		;
S_101_0: /* 2 */
		((P0 *)_this)->position = (((int)((P0 *)_this)->position)+1);
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
		goto S_147_0;
S_147_0: /* 1 */

#if defined(C_States) && (HAS_TRACK==1)
		c_update((uchar *) &(now.c_state[0]));
#endif
		_m = 3; goto P999;

	case 37: // STATE 104 - fencing.pml:191 - [(((position<=7)&&!((writer_of[position]==0))))] (0:0:0 - 1)
		IfNotBlocked
		reached[0][104] = 1;
		if (!(((((int)((P0 *)_this)->position)<=7)&& !((((int)now.writer_of[ Index(((int)((P0 *)_this)->position), 9) ])==0)))))
			continue;
		_m = 3; goto P999; /* 0 */
	case 38: // STATE 105 - fencing.pml:193 - [((epoch>mine))] (149:0:0 - 1)
		IfNotBlocked
		reached[0][105] = 1;
		if (!((((int)now.epoch)>((int)((P0 *)_this)->mine))))
			continue;
		/* merge: printf('writer %d: position %d is taken, and the epoch is %d: fenced\\n',mine,position,epoch)(149, 106, 149) */
		reached[0][106] = 1;
		Printf("writer %d: position %d is taken, and the epoch is %d: fenced\n", ((int)((P0 *)_this)->mine), ((int)((P0 *)_this)->position), ((int)now.epoch));
		/* merge: goto :b4(149, 107, 149) */
		reached[0][107] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 39: // STATE 111 - fencing.pml:198 - [.(goto)] (0:147:0 - 1)
		IfNotBlocked
		reached[0][111] = 1;
		;
		/* merge: .(goto)(0, 148, 147) */
		reached[0][148] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 40: // STATE 109 - fencing.pml:197 - [position = (position+1)] (0:147:1 - 1)
		IfNotBlocked
		reached[0][109] = 1;
		(trpt+1)->bup.oval = ((int)((P0 *)_this)->position);
		((P0 *)_this)->position = (((int)((P0 *)_this)->position)+1);
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
		/* merge: .(goto)(147, 111, 147) */
		reached[0][111] = 1;
		;
		/* merge: .(goto)(0, 148, 147) */
		reached[0][148] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 41: // STATE 113 - fencing.pml:200 - [((memtable!=0))] (0:0:0 - 1)
		IfNotBlocked
		reached[0][113] = 1;
		if (!((((P0 *)_this)->memtable!=0)))
			continue;
		_m = 3; goto P999; /* 0 */
	case 42: // STATE 114 - fencing.pml:203 - [((epoch>mine))] (149:0:0 - 1)
		IfNotBlocked
		reached[0][114] = 1;
		if (!((((int)now.epoch)>((int)((P0 *)_this)->mine))))
			continue;
		/* merge: printf('writer %d: flush refused, the epoch is %d\\n',mine,epoch)(149, 115, 149) */
		reached[0][115] = 1;
		Printf("writer %d: flush refused, the epoch is %d\n", ((int)((P0 *)_this)->mine), ((int)now.epoch));
		/* merge: goto :b4(149, 116, 149) */
		reached[0][116] = 1;
		;
		_m = 3; goto P999; /* 2 */
	case 43: // STATE 120 - fencing.pml:211 - [seen = (position-1)] (0:145:1 - 1)
		IfNotBlocked
		reached[0][120] = 1;
		(trpt+1)->bup.oval = ((int)now.seen);
		now.seen = (((int)((P0 *)_this)->position)-1);
#ifdef VAR_RANGES
		logval("seen", ((int)now.seen));
#endif
		;
		/* merge: .(goto)(145, 123, 145) */
		reached[0][123] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 44: // STATE 123 - fencing.pml:214 - [.(goto)] (0:145:0 - 2)
		IfNotBlocked
		reached[0][123] = 1;
		;
		_m = 3; goto P999; /* 0 */
	case 45: // STATE 121 - fencing.pml:212 - [(1)] (145:0:0 - 1)
		IfNotBlocked
		reached[0][121] = 1;
		if (!(1))
			continue;
		/* merge: .(goto)(145, 123, 145) */
		reached[0][123] = 1;
		;
		_m = 3; goto P999; /* 1 */
	case 46: // STATE 145 - fencing.pml:214 - [D_STEP214]
		/* default 259 */
		

		reached[0][145] = 1;
		reached[0][t->st] = 1;
		reached[0][tt] = 1;

		if (TstOnly) return 1;

		sv_save();
		S_123_0: /* 2 */
		Printf("writer %d: flushed generation %d, covering up to %d, last seen %d\n", ((int)((P0 *)_this)->mine), ((int)now.generation), (((int)((P0 *)_this)->position)-1), ((int)now.seen));
S_124_0: /* 2 */
		now.generation = (((int)now.generation)+1);
#ifdef VAR_RANGES
		logval("generation", ((int)now.generation));
#endif
		;
S_125_0: /* 2 */
		now.replay = (((int)((P0 *)_this)->position)-1);
#ifdef VAR_RANGES
		logval("replay", ((int)now.replay));
#endif
		;
S_126_0: /* 2 */
		now.owed = (now.owed& ~(((P0 *)_this)->memtable));
#ifdef VAR_RANGES
		logval("owed", now.owed);
#endif
		;
S_127_0: /* 2 */
		((P0 *)_this)->memtable = 0;
#ifdef VAR_RANGES
		logval("Writer:memtable", ((P0 *)_this)->memtable);
#endif
		;
S_128_0: /* 2 */
		((P0 *)_this)->current = ((int)now.generation);
#ifdef VAR_RANGES
		logval("Writer:current", ((int)((P0 *)_this)->current));
#endif
		;
S_129_0: /* 2 */
		((P0 *)_this)->i = 1;
#ifdef VAR_RANGES
		logval("Writer:i", ((int)((P0 *)_this)->i));
#endif
		;
S_141_0: /* 2 */
S_140_0: /* 2 */
S_130_0: /* 2 */
		if (!((((int)((P0 *)_this)->i)<=7)))
			goto S_140_1;
S_135_0: /* 2 */
S_131_0: /* 2 */
		if (!((now.owed&(1<<((int)((P0 *)_this)->i)))))
			goto S_135_1;
S_132_0: /* 2 */
		spin_assert((((int)((P0 *)_this)->i)>((int)now.replay)), "(i>replay)", II, tt, t);
S_133_0: /* 2 */
		spin_assert((((int)now.generation_of[ Index(((int)((P0 *)_this)->i), 9) ])>=((int)now.generation)), "(generation_of[i]>=generation)", II, tt, t);
		goto S_136_0;
S_135_1: /* 3 */
S_134_0: /* 2 */
		/* else */;
		goto S_136_0;
S_135_2: /* 3 */
		Uerror("blocking sel in d_step (nr.17, near line 226)");
S_136_0: /* 2 */
S_137_0: /* 2 */
		((P0 *)_this)->i = (((int)((P0 *)_this)->i)+1);
#ifdef VAR_RANGES
		logval("Writer:i", ((int)((P0 *)_this)->i));
#endif
		;
		goto S_141_0; /* ';' */
S_140_1: /* 3 */
S_138_0: /* 2 */
		/* else */;
S_139_0: /* 2 */
		goto S_142_0;	/* 'goto' */
S_140_2: /* 3 */
		Uerror("blocking sel in d_step (nr.18, near line 224)");
S_142_0: /* 2 */
		goto S_143_0;	/* 'break' */
S_143_0: /* 2 */
		((P0 *)_this)->i = 0;
#ifdef VAR_RANGES
		logval("Writer:i", ((int)((P0 *)_this)->i));
#endif
		;
		goto S_147_0; /* ';' */

#if defined(C_States) && (HAS_TRACK==1)
		c_update((uchar *) &(now.c_state[0]));
#endif
		_m = 3; goto P999;

	case 47: // STATE 150 - fencing.pml:238 - [position = 0] (0:0:1 - 7)
		IfNotBlocked
		reached[0][150] = 1;
		(trpt+1)->bup.oval = ((int)((P0 *)_this)->position);
		((P0 *)_this)->position = 0;
#ifdef VAR_RANGES
		logval("Writer:position", ((int)((P0 *)_this)->position));
#endif
		;
		_m = 3; goto P999; /* 0 */
	case 48: // STATE 151 - fencing.pml:238 - [hint = 0] (0:155:4 - 1)
		IfNotBlocked
		reached[0][151] = 1;
		(trpt+1)->bup.ovals = grab_ints(4);
		(trpt+1)->bup.ovals[0] = ((int)((P0 *)_this)->hint);
		((P0 *)_this)->hint = 0;
#ifdef VAR_RANGES
		logval("Writer:hint", ((int)((P0 *)_this)->hint));
#endif
		;
		/* merge: i = 0(155, 152, 155) */
		reached[0][152] = 1;
		(trpt+1)->bup.ovals[1] = ((int)((P0 *)_this)->i);
		((P0 *)_this)->i = 0;
#ifdef VAR_RANGES
		logval("Writer:i", ((int)((P0 *)_this)->i));
#endif
		;
		/* merge: memtable = 0(155, 153, 155) */
		reached[0][153] = 1;
		(trpt+1)->bup.ovals[2] = ((P0 *)_this)->memtable;
		((P0 *)_this)->memtable = 0;
#ifdef VAR_RANGES
		logval("Writer:memtable", ((P0 *)_this)->memtable);
#endif
		;
		/* merge: current = 0(155, 154, 155) */
		reached[0][154] = 1;
		(trpt+1)->bup.ovals[3] = ((int)((P0 *)_this)->current);
		((P0 *)_this)->current = 0;
#ifdef VAR_RANGES
		logval("Writer:current", ((int)((P0 *)_this)->current));
#endif
		;
		_m = 3; goto P999; /* 3 */
	case 49: // STATE 155 - fencing.pml:239 - [-end-] (0:0:0 - 1)
		IfNotBlocked
		reached[0][155] = 1;
		if (!delproc(1, II)) continue;
		_m = 3; goto P999; /* 0 */
	case  _T5:	/* np_ */
		if (!((!(trpt->o_pm&4) && !(trpt->tau&128))))
			continue;
		/* else fall through */
	case  _T2:	/* true */
		_m = 3; goto P999;
#undef rand
	}


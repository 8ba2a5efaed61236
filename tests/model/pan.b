	switch (t->back) {
	default: Uerror("bad return move");
	case  0: goto R999; /* nothing to undo */

		 /* PROC :init: */

	case 3: // STATE 1
		;
		((P2 *)_this)->w = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 5: // STATE 3
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 6: // STATE 4
		;
		((P2 *)_this)->w = trpt->bup.oval;
		;
		goto R999;

	case 7: // STATE 10
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 8: // STATE 11
		;
		((P2 *)_this)->w = trpt->bup.oval;
		;
		goto R999;

	case 9: // STATE 13
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* PROC Collector */
;
		;
			case 11: // STATE 7
		sv_restor();
		goto R999;
	case 12: // STATE 98
		sv_restor();
		goto R999;
;
		;
			case 14: // STATE 116
		sv_restor();
		goto R999;

	case 15: // STATE 117
		;
		((P1 *)_this)->p = trpt->bup.oval;
		;
		goto R999;

	case 16: // STATE 126
		;
		((P1 *)_this)->doomed = trpt->bup.ovals[2];
		((P1 *)_this)->p = trpt->bup.ovals[1];
	/* 0 */	((P1 *)_this)->p = trpt->bup.ovals[0];
		;
		;
		ungrab_ints(trpt->bup.ovals, 3);
		goto R999;

	case 17: // STATE 126
		;
		((P1 *)_this)->doomed = trpt->bup.ovals[1];
		((P1 *)_this)->p = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 18: // STATE 132
		;
		((P1 *)_this)->round = trpt->bup.oval;
		;
		goto R999;

	case 19: // STATE 133
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* PROC Writer */
	case 20: // STATE 6
		sv_restor();
		goto R999;

	case 21: // STATE 57
		;
		((P0 *)_this)->i = trpt->bup.ovals[1];
		((P0 *)_this)->position = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 22: // STATE 9
		;
		((P0 *)_this)->hint = trpt->bup.oval;
		;
		goto R999;

	case 23: // STATE 13
		;
		((P0 *)_this)->hint = trpt->bup.ovals[1];
		((P0 *)_this)->position = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 24: // STATE 16
		;
		((P0 *)_this)->position = trpt->bup.oval;
		;
		goto R999;
;
		
	case 25: // STATE 18
		goto R999;
	case 26: // STATE 35
		sv_restor();
		goto R999;

	case 27: // STATE 39
		;
	/* 0 */	((P0 *)_this)->position = trpt->bup.oval;
		;
		;
		goto R999;
	case 28: // STATE 46
		sv_restor();
		goto R999;

	case 29: // STATE 48
		;
	/* 0 */	((P0 *)_this)->position = trpt->bup.oval;
		;
		;
		goto R999;

	case 30: // STATE 57
		;
		((P0 *)_this)->i = trpt->bup.ovals[1];
		((P0 *)_this)->position = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 31: // STATE 58
		;
	/* 0 */	((P0 *)_this)->position = trpt->bup.oval;
		;
		;
		goto R999;
;
		
	case 32: // STATE 61
		goto R999;
	case 33: // STATE 73
		sv_restor();
		goto R999;
	case 34: // STATE 76
		sv_restor();
		goto R999;

	case 35: // STATE 81
		;
	/* 0 */	((P0 *)_this)->position = trpt->bup.oval;
		;
		;
		goto R999;
	case 36: // STATE 103
		sv_restor();
		goto R999;
;
		;
		;
		
	case 38: // STATE 105
		goto R999;
;
		
	case 39: // STATE 111
		goto R999;

	case 40: // STATE 109
		;
		((P0 *)_this)->position = trpt->bup.oval;
		;
		goto R999;
;
		;
		;
		
	case 42: // STATE 114
		goto R999;

	case 43: // STATE 120
		;
		now.seen = trpt->bup.oval;
		;
		goto R999;
;
		
	case 44: // STATE 123
		goto R999;
;
		
	case 45: // STATE 121
		goto R999;
	case 46: // STATE 145
		sv_restor();
		goto R999;

	case 47: // STATE 150
		;
		((P0 *)_this)->position = trpt->bup.oval;
		;
		goto R999;

	case 48: // STATE 154
		;
		((P0 *)_this)->current = trpt->bup.ovals[3];
		((P0 *)_this)->memtable = trpt->bup.ovals[2];
		((P0 *)_this)->i = trpt->bup.ovals[1];
		((P0 *)_this)->hint = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 4);
		goto R999;

	case 49: // STATE 155
		;
		p_restor(II);
		;
		;
		goto R999;
	}


/* kind.h - how a holder or waiter shares the lock, for people and for programs. */
#ifndef CLI_KIND_H
#define CLI_KIND_H

#include "dlock.h"
#include "json.h"

#define KIND_TEXT_SIZE 48

/*
 * In buf: "", " (shared)", " (slot 2 of 3)", or for a waiter " (for one of 3 slots)". Returns buf.
 */
const char *kind_text(const struct dlock_info *, char buf[KIND_TEXT_SIZE]);
/* The members mode, slots and slot; none for an exclusive lock. */
void kind_json(struct json *, const struct dlock_info *);

#endif

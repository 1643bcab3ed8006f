/* mod_none.c - a library that is no module. */
const int dlock_modul = 1;

/* errors.c - the library's and the server's errors in our words. */
#include "zookeeper.h"

bool zk_transient(int rc)
{
    switch (rc) {
    case ZCONNECTIONLOSS:
    case ZRUNTIMEINCONSISTENCY: /* the library's own words for an answer out of order: it hangs up */
    case ZOPERATIONTIMEOUT:
    case ZSESSIONMOVED:
    case ZNOTREADONLY:
    case ZTHROTTLEDOP:
    case ZNEWCONFIGNOQUORUM:
    case ZRECONFIGINPROGRESS:
    case ZINVALIDSTATE:
    case ZSESSIONEXPIRED:
    case ZCLOSING:
        return true;
    default:
        return false;
    }
}

static int code_of(int rc)
{
    switch (rc) {
    case ZNOAUTH:
    case ZAUTHFAILED:
    case ZINVALIDACL:
    case ZSESSIONCLOSEDREQUIRESASLAUTH:
        return DLOCK_EPERM;
    case ZSYSTEMERROR:
        return DLOCK_EOS;
    case ZUNIMPLEMENTED:
    case ZEPHEMERALONLOCALSESSION:
    case ZNOCHILDRENFOREPHEMERALS:
        return DLOCK_EUNAVAIL;
    default:
        return zk_transient(rc) ? DLOCK_EUNAVAIL : DLOCK_EPROTO;
    }
}

int zk_error(const struct dlock_be *be, int rc, const char *what, struct dlock_error *err)
{
    const char *why = zerror(rc), *hint = "";
    switch (rc) {
    case ZNOAUTH:
        why = "not allowed there";
        hint =
            be->credentials ? " to this user" : " without authentication (zk://user:password@...)";
        break;
    case ZAUTHFAILED:
        why = "the server refused the authentication";
        break;
    case ZUNIMPLEMENTED:
        why = "the server is older than 3.5";
        break;
    case ZNOCHILDRENFOREPHEMERALS:
        why = "a node of that path is ephemeral, and cannot have others below it";
        break;
    default:
        break;
    }
    return dlock_fail(err, code_of(rc), 0, "%s: lock '%s': %s: %s%s", zk_where(be),
                      be->spec->uri->name, what, why, hint);
}

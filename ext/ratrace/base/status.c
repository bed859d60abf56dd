#include "base/status.h"

#include <errno.h>

const char *rat_status_text(enum rat_status status)
{
    static const char *const texts[] = {
#define RAT_STATUS_TEXT(code, text) text,
        RAT_STATUS_LIST(RAT_STATUS_TEXT)
#undef RAT_STATUS_TEXT
    };
    unsigned index = (unsigned)status;
    return index < sizeof texts / sizeof *texts ? texts[index] : "unknown status";
}

enum rat_status rat_status_from_errno(int error)
{
    switch (error) {
    case 0:
        return RAT_OK;
    case ENOMEM:
        return RAT_NO_MEMORY;
    case ENOSPC:
    case EDQUOT:
        return RAT_NO_SPACE;
    case EEXIST:
        return RAT_EXISTS;
    case ENOENT:
    case ENOTDIR:
        return RAT_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
        return RAT_ACCESS;
    case EINVAL:
        return RAT_INVALID;
    case EFBIG:
    case ENAMETOOLONG:
        return RAT_TOO_BIG;
    default:
        return RAT_IO;
    }
}

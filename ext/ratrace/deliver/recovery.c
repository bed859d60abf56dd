#include "deliver/recovery.h"
#include <string.h>
enum rat_status rat_recover_until(const char *out_dir, const char *live_dir, rat_recovery_report report,
                                                 void *user, const _Atomic uint32_t *cancel,
                                                 struct rat_recovery *out)
{ (void)out_dir;(void)live_dir;(void)report;(void)user;(void)cancel; memset(out,0,sizeof *out); return RAT_OK; }
enum rat_status rat_recover(const char *out_dir, const char *live_dir, rat_recovery_report report,
                                                 void *user, 
                                                 struct rat_recovery *out)
{ return rat_recover_until(out_dir, live_dir, report, user, NULL, out); }

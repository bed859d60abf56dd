#include <ruby.h>

#include "ruby/rb_agent.h"
#include "ruby/rb_context.h"
#include "ruby/rb_control.h"
#include "ruby/rb_doctor.h"
#include "ruby/rb_event.h"
#include "ruby/rb_hook.h"
#include "ruby/rb_name.h"
#include "ruby/rb_pulse.h"
#include "ruby/rb_recording.h"
#include "ruby/rb_recovery.h"
#include "ruby/rb_session.h"
#include "ruby/rb_ship.h"
#include "ruby/rb_site.h"
#include "ruby/rb_tap.h"

RUBY_FUNC_EXPORTED void Init_ratrace(void);

void Init_ratrace(void)
{
#ifdef HAVE_RB_EXT_RACTOR_SAFE
    rb_ext_ractor_safe(true); /* attach and detach run in other Ractors; the rest refuses there */
#endif
    rb_rat_doctor_check_ruby();
    VALUE native = rb_define_module_under(rb_define_module("Ratrace"), "Native");
    rb_rat_name_init();
    rb_rat_context_init();
    rb_rat_agent_init();
    rb_rat_pulse_init();
    rb_rat_hook_init();
    rb_rat_session_init(native);
    rb_rat_control_init(native);
    rb_rat_site_init(native);
    rb_rat_doctor_init(native);
    rb_rat_recovery_init(native);
    rb_rat_event_init();
    rb_rat_recording_init(native);
    rb_rat_ship_init(native);
    rb_rat_tap_init(native);
}

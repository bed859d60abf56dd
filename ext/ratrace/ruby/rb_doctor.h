/* rb_doctor.h - what `ratrace doctor` asks of the extension: what it was built for, libraries, filesystems. */
#ifndef RB_RAT_DOCTOR_H
#define RB_RAT_DOCTOR_H

#include <ruby.h>

/* Raise LoadError where the running Ruby is not of the minor version the extension was built for: structures differ. */
void rb_rat_doctor_check_ruby(void);

void rb_rat_doctor_init(VALUE native);

#endif

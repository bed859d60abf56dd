# frozen_string_literal: true

require "mkmf"

$CFLAGS << " -O2" unless $CFLAGS.match?(/-O[123s]\b/)
create_makefile("empty_hook")

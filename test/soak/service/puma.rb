# frozen_string_literal: true

# Without preloading, so that a phased restart loads the application anew.
workers 2
threads 2, 2
bind "tcp://127.0.0.1:#{ENV.fetch("PORT")}"
worker_timeout 120
silence_single_worker_warning
quiet

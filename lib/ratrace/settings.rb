# frozen_string_literal: true

require_relative "setting"

module Ratrace
  # All settings there are. Checking, the environment's names, the YAML file's keys, `ratrace doctor` and the README's
  # table come from here.
  module Settings
    MIB = 1024 * 1024
    DAY = 86_400

    def self.setting(name, type, default, doc, **more)
      Setting.new(name, type, default, doc, **more)
    end
    private_class_method :setting

    ALL = [
      setting(:enabled, :boolean, true, "record from the start; off: once `ratrace ctl` asks; `RATRACE_DISABLED=1` beats everything"),
      setting(:out_dir, :directory, "ratrace.out", "directory of the segment files; made for the owner only"),
      setting(:live_dir, :directory, nil, "where slots are mapped; must be on tmpfs; default `/dev/shm/ratrace-UID`"),
      setting(:service, :text, nil, "name of the service, in file names and reports; default the program's name"),
      setting(:tags, :map, {}, "labels of the service, in segments, reports and metrics; at most 64, of 1024 bytes"),
      setting(:root, :directory, nil, "the application's own files lie below; default the current directory"),

      setting(:period, :number, 1.0, "time between two flushes", unit: "seconds", range: 0.01..3600.0),
      setting(:slot_size, :bytes, 8 * MIB, "each of the two buffers", range: 16 * 1024..32 * MIB, step: 4096),
      setting(:segment_size, :bytes, 64 * MIB, "a segment this large is closed", range: 64 * 1024..512 * MIB),
      setting(:segment_age, :number, 3600.0, "a segment this old is closed", unit: "seconds", range: 1.0..7.0 * DAY),
      setting(:spool_size, :bytes, 1024 * MIB, "of a service's segments; beyond that the oldest closed ones go",
              range: MIB..1024 * 1024 * MIB),
      setting(:spool_age, :number, 7.0 * DAY, "of a service's closed segments", unit: "seconds",
                                              range: 60.0..3650.0 * DAY),
      setting(:file_mode, :mode, 0o600, "permissions of segments", choices: [0o600, 0o640]),
      setting(:shutdown_deadline, :number, 1.0, "what the end of the process may wait for deliveries",
              unit: "seconds", range: 0.0..60.0),

      setting(:trace, :trace, nil, "which files and methods; `all` is every call of the process; in a service the " \
                                   "files below root that belong to no gem"),
      setting(:max_overhead, :number, 0.02, "share of the process that tracing may cost", range: 0.001..1.0),
      setting(:c_calls, :boolean, false, "methods written in C, too"),
      setting(:include, :globs, [], "only methods of files that match one of these"),
      setting(:exclude, :globs, [], "no methods of files that match one of these"),

      setting(:export_url, :url, nil, "where closed segments are sent: `https://HOST/PATH`, `s3://BUCKET/PREFIX`",
              choices: %w[http https s3]),
      setting(:export_method, :choice, "PUT", "PUT to URL/NAME or POST to URL", choices: %w[PUT POST]),
      setting(:export_headers, :headers, {}, "sent with each request", secret: true),
      setting(:export_token, :text, nil, "sent as `Authorization: Bearer`", secret: true),
      setting(:export_token_file, :path, nil, "file that holds the token"),
      setting(:finalize_url, :url, nil, "gets a POST about each segment once it is stored", choices: %w[http https]),
      setting(:s3_endpoint, :url, nil, "other than AWS's own; or `AWS_ENDPOINT_URL`", choices: %w[http https],
                                                                                       other: "AWS_ENDPOINT_URL"),
      setting(:s3_region, :text, nil, "or `AWS_REGION`; default us-east-1", other: "AWS_REGION"),
      setting(:s3_path_style, :boolean, false, "bucket in the path, not in the host name"),
      setting(:s3_access_key_id, :text, nil, "or `AWS_ACCESS_KEY_ID`", secret: true, other: "AWS_ACCESS_KEY_ID"),
      setting(:s3_secret_access_key, :text, nil, "or `AWS_SECRET_ACCESS_KEY`", secret: true,
                                                                               other: "AWS_SECRET_ACCESS_KEY"),
      setting(:s3_session_token, :text, nil, "or `AWS_SESSION_TOKEN`", secret: true, other: "AWS_SESSION_TOKEN"),
      setting(:ca_file, :path, nil, "certificates to trust instead of the system's"),
      setting(:proxy, :url, nil, "default `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`",
              choices: %w[http https socks5 socks5h]),

      setting(:control, :boolean, true, "listen for `ratrace ctl` in a service"),
      setting(:metrics_file, :path, nil, "Prometheus text for node_exporter; the process id is put into the name"),
      setting(:clock, :choice, "auto", "`monotonic` does without the CPU's counter", choices: %w[auto monotonic]),
      setting(:fence, :choice, "auto", "`seq_cst` does without membarrier", choices: %w[auto seq_cst]),
      setting(:frame_words, :boolean, true, "off: tell frames by the VM's public calls"),
      setting(:debug, :boolean, false, "say on stderr what ratrace does")
    ].to_h { |setting| [setting.name, setting] }.freeze
  end
end

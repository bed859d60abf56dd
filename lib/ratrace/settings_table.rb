# frozen_string_literal: true

require_relative "settings"

module Ratrace
  # The settings as the README has them. Nothing else needs it.
  #
  #   ruby -Ilib -rratrace/settings_table -e 'puts Ratrace::SettingsTable.new'
  class SettingsTable
    SIZES = { "GiB" => 1024**3, "MiB" => 1024**2, "KiB" => 1024, "bytes" => 1 }.freeze

    # @return [String] Markdown
    def to_s
      rows = Settings::ALL.values.map do |setting|
        "| `#{setting.name}` | #{setting.doc} | #{allowed(setting)} | #{default(setting)} |"
      end
      ["| setting | meaning | allowed | default |", "|---|---|---|---|", *rows].join("\n")
    end

    private

    def allowed(setting)
      case setting.type
      when :boolean then "on, off"
      when :number, :bytes
        bounds = [setting.range.min, setting.range.max].map { |bound| amount(setting, bound) }
        "#{bounds.join(" to ")}#{" #{setting.unit}" if setting.unit}"
      when :choice, :mode then setting.choices.map { |choice| amount(setting, choice) }.join(", ")
      when :map, :headers then "name=text,..."
      when :trace then "globs, `Class#method`"
      else setting.type.to_s
      end
    end

    def default(setting)
      value = setting.default
      return "" if value.nil? || value == [] || value == {}
      return value ? "on" : "off" if setting.type == :boolean

      amount(setting, value)
    end

    def amount(setting, value)
      case setting.type
      when :bytes
        unit, factor = SIZES.find { |_, size| (value % size).zero? }
        "#{value / factor} #{unit}"
      when :mode then format("%04o", value)
      when :number then (value == value.to_i ? value.to_i : value).to_s
      else value
      end
    end
  end
end

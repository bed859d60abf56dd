# frozen_string_literal: true

require "cgi/escape"
require_relative "../cli/text"

module Ratrace
  class Receiver
    # HTML made of elements, so that no text gets into a page but through `escape`.
    module Html
      # Text that is HTML already; only this module makes it.
      class Safe
        def initialize(html)
          @html = html
        end

        def to_s
          @html
        end
      end

      module_function

      # @param content [Array] text, Safe, nil, or arrays of them
      def tag(name, *content, **attributes)
        pairs = attributes.map { |key, value| " #{key}=\"#{escape(value)}\"" unless value.nil? }.join
        Safe.new("<#{name}#{pairs}>#{join(content)}</#{name}>")
      end

      # An element without content.
      def void(name, **attributes)
        Safe.new(tag(name, **attributes).to_s.delete_suffix("</#{name}>"))
      end

      def join(content)
        content.flatten.map { |part| part.is_a?(Safe) ? part.to_s : escape(part) }.join
      end

      def escape(text)
        CGI.escapeHTML(CLI::Text.clean(text.to_s))
      end

      def query(**values)
        "?#{values.compact.map { |key, value| "#{key}=#{percent(value)}" }.join("&")}"
      end

      def percent(value)
        value.to_s.b.gsub(/[^A-Za-z0-9._~-]/n) { |byte| format("%%%02X", byte.ord) }
      end

      # @return [Hash{String => String}]
      def parse_query(text)
        text.split("&").first(16).to_h do |pair|
          name, value = pair.split("=", 2).map { |part| part.tr("+", " ").gsub(/%(\h\h)/) { $1.hex.chr }.b }
          [name.to_s, CLI::Text.clean(value.to_s)]
        end
      end

      def document(title, *content)
        head = tag(:head, void(:meta, charset: "utf-8"), tag(:title, title),
                   void(:meta, name: "viewport", content: "width=device-width, initial-scale=1"),
                   void(:meta, name: "color-scheme", content: "light dark"),
                   void(:link, rel: "stylesheet", href: "/style.css"))
        "<!DOCTYPE html>\n#{tag(:html, head, tag(:body, *content), lang: "en")}\n"
      end
    end
  end
end

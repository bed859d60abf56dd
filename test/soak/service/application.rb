# frozen_string_literal: true

require "digest"
require "json"
require "sinatra/base"

# Lines of an order.
Line = Struct.new(:item, :count, :price) do
  def total = count * price
end

# What a shop sells, made up from a number: the same for everybody.
class Catalogue
  def initialize(size)
    @items = Array.new(size) { |i| ["item-#{i}", Digest::SHA1.hexdigest(i.to_s).to_i(16) % 10_000] }
  end

  def lines(seed)
    @items.each_with_index.select { |_, i| (i * 7 + seed) % 5 == 0 }.map { |(name, price), i| Line.new(name, i % 4 + 1, price) }
  end

  def ranked(seed)
    lines(seed).sort_by { |line| [-line.total, line.item] }
  end
end

# A small real application: pages, JSON, errors, threads of its own.
class Shop < Sinatra::Base
  CATALOGUE = Catalogue.new(200)

  set :environment, :production
  set :views, File.join(__dir__, "views")
  disable :logging, :protection

  get("/") { "welcome" }

  get "/orders/:id" do
    content_type :json
    JSON.generate(CATALOGUE.ranked(params["id"].to_i).map { |line| { item: line.item, total: line.total } })
  end

  get "/pages/:id" do
    @lines = CATALOGUE.ranked(params["id"].to_i)
    erb :page
  end

  get "/parallel/:id" do
    Array.new(3) { |i| Thread.new { CATALOGUE.lines(params["id"].to_i + i).sum(&:total) } }.map(&:value).join(",")
  end

  get "/stress/:id" do
    GC.stress = true
    CATALOGUE.lines(params["id"].to_i).first(3).sum(&:total).to_s
  ensure
    GC.stress = false
  end

  get "/refused/:id" do
    raise ArgumentError, "no such order" if params["id"].to_i.odd?

    halt 404, "gone"
  rescue ArgumentError => e
    halt 422, e.message
  end
end

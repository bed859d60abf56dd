# frozen_string_literal: true

# Three shapes of program, each of which calls many methods and does little else. `part` is how much of it to run.
module Shapes
  # One empty method in a loop: the hook's cost with nothing around it, and the stack never deeper than one.
  module Flat
    CALLS = 1_000_000

    def self.run(part = 1.0)
      n = (CALLS * part).to_i
      while n > 0
        nothing
        n -= 1
      end
    end

    def self.nothing; end
  end

  # Recursion: the stack goes up and down all the time.
  module Nested
    CALLS = 600_000

    # A Fibonacci number near the wanted size; it takes 1.62 times as many calls as the one before.
    def self.run(part = 1.0)
      fibonacci(Math.log(CALLS * part * 0.69, 1.618).round)
    end

    def self.fibonacci(n)
      n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2)
    end
  end

  # Objects that keep state in instance variables, talk to each other and pass blocks: what most code looks like.
  module Objects
    DAYS = 1500

    def self.run(part = 1.0)
      shop = Shop.new(50)
      (DAYS * part).to_i.times { |day| shop.sell(day) }
      shop.total
    end

    class Item
      attr_reader :name, :price, :stock

      def initialize(name, price)
        @name = name
        @price = price
        @stock = 100
      end

      def take(count)
        @stock -= count
        restock if low?
        cost(count)
      end

      def cost(count)
        @price * count
      end

      def low?
        @stock < 10
      end

      def restock
        @stock += 100
      end
    end

    class Shop
      include Enumerable

      def initialize(size)
        @items = Array.new(size) { |i| Item.new("item #{i}", i + 1) }
        @ledger = Ledger.new
      end

      def each(&block)
        @items.each(&block)
      end

      def sell(day)
        offered(day) { |item| @ledger.add(item.name, item.take(wanted(item, day))) }
        @ledger.close
      end

      def offered(day)
        each { |item| yield item if offered?(item, day) }
      end

      def offered?(item, day)
        (item.price + day) % 4 != 0
      end

      def wanted(item, day)
        1 + ((item.price ^ day) & 3)
      end

      def total
        @ledger.total
      end
    end

    class Ledger
      attr_reader :total

      def initialize
        @total = 0
        @open = {}
      end

      def add(name, amount)
        @open[name] = entry(name) + amount
      end

      def entry(name)
        @open.fetch(name, 0)
      end

      def close
        @open.each_value { |amount| book(amount) }
        @open.clear
      end

      def book(amount)
        @total += amount
      end
    end
  end

  ALL = { "flat" => Flat, "nested" => Nested, "objects" => Objects }.freeze
end

# frozen_string_literal: true

# An 8-bit games console in plain Ruby, the kind of program a call recorder is hard on: a processor that dispatches each
# instruction to two small methods, a picture unit that runs in a fiber and fetches tile by tile, a sound unit, and all of
# them talking through a memory map. It plays a built-in game that nobody plays, and prints a checksum of what it showed.
#
#   ruby console.rb [FRAMES]
module Console
  CYCLES_PER_LINE = 114
  LINES = 262
  VISIBLE_LINES = 240
  TILES = 32

  # Addresses to devices: each page of 256 bytes has one reader and one writer.
  class Bus
    def initialize
      @ram = Array.new(0x800, 0)
      @readers = Array.new(256, method(:read_open))
      @writers = Array.new(256, method(:write_open))
      map(0x00..0x07, method(:read_ram), method(:write_ram))
    end

    def map(pages, reader, writer)
      pages.each do |page|
        @readers[page] = reader
        @writers[page] = writer if writer
      end
    end

    def read(address)
      @readers[address >> 8].call(address)
    end

    def write(address, value)
      @writers[address >> 8].call(address, value)
    end

    def read_word(address)
      read(address) | read(address + 1) << 8
    end

    private

    def read_ram(address)
      @ram[address]
    end

    def write_ram(address, value)
      @ram[address] = value
    end

    def read_open(address)
      address & 0xff
    end

    def write_open(_address, value)
      value
    end
  end

  # The game's code, 0xc000..0xffff.
  class Cartridge
    START = 0xc000

    def initialize(program)
      @bytes = program + Array.new(0x4000 - program.size, 0)
    end

    def connect(bus)
      bus.map(0xc0..0xff, method(:read), nil)
    end

    def read(address)
      @bytes[address - START]
    end
  end

  # A 6502, as much of it as the game needs.
  class Processor
    attr_reader :cycles

    INSTRUCTIONS = {
      0xa9 => %i[load_a immediate], 0xa5 => %i[load_a zero_page], 0xad => %i[load_a absolute],
      0xbd => %i[load_a absolute_x], 0xb1 => %i[load_a indirect_y], 0xa2 => %i[load_x immediate],
      0xa6 => %i[load_x zero_page], 0xa0 => %i[load_y immediate], 0x85 => %i[store_a zero_page_address],
      0x8d => %i[store_a absolute_address], 0x9d => %i[store_a absolute_x_address],
      0x91 => %i[store_a indirect_y_address], 0x86 => %i[store_x zero_page_address],
      0xe6 => %i[increment zero_page_address], 0xc6 => %i[decrement zero_page_address], 0xe8 => %i[increment_x implied],
      0xca => %i[decrement_x implied], 0xc8 => %i[increment_y implied], 0x88 => %i[decrement_y implied],
      0x69 => %i[add immediate], 0x65 => %i[add zero_page], 0xe9 => %i[subtract immediate], 0x29 => %i[and_a immediate],
      0x45 => %i[xor_a zero_page], 0x49 => %i[xor_a immediate], 0x4a => %i[shift_right implied],
      0x0a => %i[shift_left implied], 0xc9 => %i[compare_a immediate], 0xe0 => %i[compare_x immediate],
      0xc0 => %i[compare_y immediate], 0x18 => %i[clear_carry implied], 0x38 => %i[set_carry implied],
      0xaa => %i[a_to_x implied], 0x8a => %i[x_to_a implied], 0xa8 => %i[a_to_y implied], 0x98 => %i[y_to_a implied],
      0xd0 => %i[branch_unless_zero relative], 0xf0 => %i[branch_if_zero relative],
      0x90 => %i[branch_unless_carry relative], 0xb0 => %i[branch_if_carry relative],
      0x10 => %i[branch_if_plus relative], 0x30 => %i[branch_if_minus relative],
      0x4c => %i[jump absolute_address], 0x20 => %i[call absolute_address], 0x60 => %i[return_from implied],
      0x48 => %i[push_a implied], 0x68 => %i[pull_a implied]
    }.freeze
    DISPATCH = Array.new(256) { |opcode| INSTRUCTIONS.fetch(opcode, %i[no_operation implied]) }.freeze

    def initialize(bus)
      @bus = bus
      @pc = Cartridge::START
      @a = @x = @y = 0
      @stack = 0xff
      @zero = @negative = 1
      @carry = 0
      @cycles = 0
    end

    def run(target)
      step while @cycles < target
    end

    def step
      operation, mode = DISPATCH[fetch]
      send(operation, send(mode))
    end

    private

    def fetch
      value = @bus.read(@pc)
      @pc += 1
      @cycles += 1
      value
    end

    def fetch_word
      fetch | fetch << 8
    end

    def implied
      @cycles += 1
    end

    def immediate
      fetch
    end

    def zero_page_address
      fetch
    end

    def absolute_address
      fetch_word
    end

    def absolute_x_address
      fetch_word + @x & 0xffff
    end

    def indirect_y_address
      @bus.read_word(fetch) + @y & 0xffff
    end

    def zero_page
      read(zero_page_address)
    end

    def absolute
      read(absolute_address)
    end

    def absolute_x
      read(absolute_x_address)
    end

    def indirect_y
      read(indirect_y_address)
    end

    def relative
      offset = fetch
      @pc + (offset < 128 ? offset : offset - 256)
    end

    def read(address)
      @cycles += 1
      @bus.read(address)
    end

    def write(address, value)
      @cycles += 1
      @bus.write(address, value)
    end

    def flags(value)
      @zero = @negative = value
    end

    def load_a(value)
      flags(@a = value)
    end

    def load_x(value)
      flags(@x = value)
    end

    def load_y(value)
      flags(@y = value)
    end

    def store_a(address)
      write(address, @a)
    end

    def store_x(address)
      write(address, @x)
    end

    def increment(address)
      change(address, 1)
    end

    def decrement(address)
      change(address, -1)
    end

    def change(address, by)
      value = read(address) + by & 0xff
      write(address, value)
      flags(value)
    end

    def increment_x(_)
      flags(@x = @x + 1 & 0xff)
    end

    def decrement_x(_)
      flags(@x = @x - 1 & 0xff)
    end

    def increment_y(_)
      flags(@y = @y + 1 & 0xff)
    end

    def decrement_y(_)
      flags(@y = @y - 1 & 0xff)
    end

    def add(value)
      sum = @a + value + @carry
      @carry = sum >> 8
      flags(@a = sum & 0xff)
    end

    def subtract(value)
      add(value ^ 0xff)
    end

    def and_a(value)
      flags(@a &= value)
    end

    def xor_a(value)
      flags(@a ^= value)
    end

    def shift_right(_)
      @carry = @a & 1
      flags(@a >>= 1)
    end

    def shift_left(_)
      @carry = @a >> 7
      flags(@a = @a << 1 & 0xff)
    end

    def compare_a(value)
      compare(@a, value)
    end

    def compare_x(value)
      compare(@x, value)
    end

    def compare_y(value)
      compare(@y, value)
    end

    def compare(register, value)
      @carry = register >= value ? 1 : 0
      flags(register - value & 0xff)
    end

    def clear_carry(_)
      @carry = 0
    end

    def set_carry(_)
      @carry = 1
    end

    def a_to_x(_)
      flags(@x = @a)
    end

    def x_to_a(_)
      flags(@a = @x)
    end

    def a_to_y(_)
      flags(@y = @a)
    end

    def y_to_a(_)
      flags(@a = @y)
    end

    def branch_unless_zero(target)
      branch(target) unless @zero == 0
    end

    def branch_if_zero(target)
      branch(target) if @zero == 0
    end

    def branch_unless_carry(target)
      branch(target) if @carry == 0
    end

    def branch_if_carry(target)
      branch(target) if @carry == 1
    end

    def branch_if_plus(target)
      branch(target) if @negative < 0x80
    end

    def branch_if_minus(target)
      branch(target) if @negative >= 0x80
    end

    def branch(target)
      @cycles += 1
      @pc = target
    end

    def jump(address)
      @pc = address
    end

    def call(address)
      push(@pc >> 8)
      push(@pc & 0xff)
      @pc = address
    end

    def return_from(_)
      @pc = pull | pull << 8
    end

    def push_a(_)
      push(@a)
    end

    def pull_a(_)
      flags(@a = pull)
    end

    def push(value)
      write(0x100 | @stack, value)
      @stack = @stack - 1 & 0xff
    end

    def pull
      @stack = @stack + 1 & 0xff
      read(0x100 | @stack)
    end

    def no_operation(_) end
  end

  # Draws 240 lines of 32 tiles and eight sprites, eight pixels at a time; in a fiber, which rests when it has caught up
  # with the processor.
  class Picture
    PALETTE = [0x0f, 0x11, 0x21, 0x31, 0x16, 0x26, 0x36, 0x30].freeze
    Sprite = Struct.new(:x, :y, :tile, :palette)

    attr_reader :checksum, :frames

    def initialize
      @names = Array.new(0x400, 0)
      @patterns = Array.new(256 * 16) { |i| (i * 73 ^ i >> 3) & 0xff }
      @sprites = Array.new(8) { Sprite.new(0, 0, 0, 0) }
      @scroll = @address = @checksum = @frames = @line = @target = 0
      @pixels = []
      @blank = false
      @fiber = Fiber.new { main_loop }
    end

    def connect(bus)
      bus.map(0x20..0x23, method(:read), method(:write))
    end

    # Up to line `target`, counted from the start.
    def run(target)
      @target = target
      @fiber.resume
    end

    def read(_address)
      status = @blank ? 0x80 : 0
      @blank = false
      status
    end

    def write(address, value)
      case address
      when 0x2000 then @scroll = value
      when 0x2001 then @address = value << 8 & 0x3ff
      when 0x2002 then @address = @address & 0x300 | value
      when 0x2003 then write_name(value)
      when 0x2100..0x211f then write_sprite(address & 0x1f, value)
      end
    end

    private

    def write_name(value)
      @names[@address] = value
      @address = @address + 1 & 0x3ff
    end

    def write_sprite(at, value)
      @sprites[at >> 2][at & 3] = value
    end

    def main_loop
      loop do
        VISIBLE_LINES.times { |line| draw_line(line) }
        finish_frame
        (LINES - VISIBLE_LINES).times { wait_line }
        @blank = false
      end
    end

    def wait_line
      @line += 1
      Fiber.yield if @line >= @target
    end

    def draw_line(line)
      visible = sprites_on(line)
      TILES.times { |column| draw_tile(column, line) }
      visible.each { |sprite| draw_sprite(sprite, line) }
      finish_line
      wait_line
    end

    def sprites_on(line)
      @sprites.select { |sprite| line.between?(sprite.y, sprite.y + 7) }
    end

    def draw_tile(column, line)
      row = line + @scroll & 0xff
      tile = fetch_name(column, row)
      palette = fetch_attribute(column, row)
      emit(fetch_pattern(tile, row & 7, 0), fetch_pattern(tile, row & 7, 8), palette)
    end

    def fetch_name(column, row)
      @names[(row >> 3) * TILES + column & 0x3ff]
    end

    def fetch_attribute(column, row)
      @names[0x3c0 | (row >> 5) * 8 + (column >> 2) & 0x3f] & 1
    end

    def fetch_pattern(tile, row, plane)
      @patterns[tile << 4 | plane | row]
    end

    def emit(low, high, palette)
      bit = 7
      while bit >= 0
        @pixels << color(low >> bit & 1 | (high >> bit & 1) << 1, palette)
        bit -= 1
      end
    end

    def color(index, palette)
      PALETTE[palette << 2 | index]
    end

    def draw_sprite(sprite, line)
      low = fetch_pattern(sprite.tile, line - sprite.y, 0)
      8.times { |x| put(sprite.x + x, color(3, sprite.palette & 1)) if low >> 7 - x & 1 == 1 }
    end

    def put(x, value)
      @pixels[x] = value if x < 256
    end

    def finish_line
      @pixels.each { |pixel| @checksum = @checksum * 31 + pixel & 0xffffffff }
      @pixels.clear
    end

    def finish_frame
      @frames += 1
      @blank = true
    end
  end

  # Two square waves and noise, mixed once a line or so.
  class Sound
    # One square wave.
    class Pulse
      def initialize
        @period = @phase = @volume = 0
      end

      def configure(at, value)
        at == 0 ? @period = value : @volume = value & 15
      end

      def sample
        advance
        high? ? @volume : 0
      end

      def advance
        @phase += 1
        @phase = 0 if @phase > @period
      end

      def high?
        @phase * 2 > @period
      end
    end

    # A shift register with feedback.
    class Noise
      def initialize
        @register = 1
        @volume = 0
      end

      def configure(_at, value)
        @volume = value & 15
      end

      def sample
        shift
        @register & 1 == 1 ? @volume : 0
      end

      def shift
        @register = @register >> 1 | feedback << 14
      end

      def feedback
        (@register ^ @register >> 1) & 1
      end
    end

    attr_reader :checksum

    def initialize
      @voices = [Pulse.new, Pulse.new, Noise.new]
      @checksum = 0
    end

    def connect(bus)
      bus.map(0x40..0x40, method(:read), method(:write))
    end

    def read(_address)
      0
    end

    def write(address, value)
      voice = @voices[address >> 1 & 3]
      voice&.configure(address & 1, value)
    end

    def run(samples)
      samples.times { output(mix) }
    end

    def mix
      @voices.sum(&:sample)
    end

    def output(level)
      @checksum = @checksum * 33 + level & 0xffffffff
    end
  end

  # The game: fills the screen with tiles from a shift register, then each frame waits for the end of the picture, moves
  # eight sprites, scrolls, writes a row of tiles and plays a tone.
  PROGRAM = [
    0xa9, 0x5a, 0x85, 0x10,                               # c000 seed = 0x5a
    0xa0, 0x00,                                           # c004 y = 0
    0x20, 0x60, 0xc0,                                     # c006 fill: call random
    0x8d, 0x03, 0x20,                                     # c009 name = a
    0xc8, 0xd0, 0xf7,                                     # c00c until y = 0
    0xad, 0x02, 0x20,                                     # c00f frame: a = status
    0x10, 0xfb,                                           # c012 until the picture is done
    0xe6, 0x11, 0xa5, 0x11, 0x8d, 0x00, 0x20,             # c014 scroll = ++count
    0xa2, 0x1f,                                           # c01b x = 31
    0x20, 0x60, 0xc0,                                     # c01d move: call random
    0x9d, 0x00, 0x03,                                     # c020 shadow[x] = a
    0xbd, 0x00, 0x03,                                     # c023 a = shadow[x]
    0x18, 0x65, 0x11,                                     # c026 a += count
    0x9d, 0x00, 0x21,                                     # c029 sprite[x] = a
    0xca, 0x10, 0xee,                                     # c02c while x >= 0
    0xa9, 0x40, 0x8d, 0x02, 0x20,                         # c02f address = 0x40
    0xa0, 0x20,                                           # c034 y = 32
    0x20, 0x60, 0xc0, 0x8d, 0x03, 0x20,                   # c036 row: name = random
    0x88, 0xd0, 0xf7,                                     # c03c while --y
    0xa5, 0x11, 0x29, 0x3f, 0x8d, 0x00, 0x40,             # c03f period of voice 0
    0xa9, 0x0c, 0x8d, 0x01, 0x40,                         # c046 its volume
    0xa5, 0x10, 0x8d, 0x02, 0x40, 0x8d, 0x03, 0x40,       # c04b voice 1
    0x4a, 0x4a, 0x8d, 0x05, 0x40,                         # c053 noise
    0x4c, 0x0f, 0xc0,                                     # c058 next frame
    0xea, 0xea, 0xea, 0xea, 0xea,                         # c05b
    0xa5, 0x10, 0x4a, 0x90, 0x02, 0x49, 0xb8,             # c060 random: shift, feed back
    0x85, 0x10, 0x60                                      # c067
  ].freeze

  # All of it wired up.
  class Machine
    def initialize
      @bus = Bus.new
      @picture = Picture.new
      @sound = Sound.new
      [Cartridge.new(PROGRAM), @picture, @sound].each { |device| device.connect(@bus) }
      @processor = Processor.new(@bus)
      @line = 0
    end

    def run(frames)
      run_line while @picture.frames < frames
      @picture.checksum ^ @sound.checksum
    end

    def run_line
      @line += 1
      @processor.run(@line * CYCLES_PER_LINE)
      @picture.run(@line)
      @sound.run(3)
    end
  end
end

puts "checksum #{Console::Machine.new.run(Integer(ARGV.fetch(0, "30")))}" if $PROGRAM_NAME == __FILE__

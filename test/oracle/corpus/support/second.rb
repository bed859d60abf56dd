# Required by second_file.rb.

class Second
  def self.made = @made = true

  made

  def run = work
end

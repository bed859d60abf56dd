# Autoloaded by second_file.rb.

module Third
  def self.run = inner

  def self.inner = work

  inner
end

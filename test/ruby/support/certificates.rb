# frozen_string_literal: true

require "openssl"

# A certificate authority of a test's own, and servers it vouches for.
class Certificates
  HOUR = 3600

  def initialize(name = "ratrace test")
    @key = OpenSSL::PKey::EC.generate("prime256v1")
    @certificate = sign(subject: name, key: @key, issuer: nil, extensions: [["basicConstraints", "CA:TRUE", true],
                                                                            ["keyUsage", "keyCertSign,cRLSign", true]])
  end

  def to_pem
    @certificate.to_pem
  end

  # For a server that goes by this name.
  def context(name: "IP:127.0.0.1", from: Time.now - HOUR, to: Time.now + HOUR)
    key = OpenSSL::PKey::EC.generate("prime256v1")
    certificate = sign(subject: "server", key: key, issuer: @certificate, from: from, to: to,
                       extensions: [["subjectAltName", name, false], ["basicConstraints", "CA:FALSE", true]])
    OpenSSL::SSL::SSLContext.new.tap { |context| context.add_certificate(certificate, key) }
  end

  private

  def sign(subject:, key:, issuer:, extensions:, from: Time.now - HOUR, to: Time.now + HOUR)
    certificate = OpenSSL::X509::Certificate.new
    certificate.version = 2
    certificate.serial = rand(1 << 64)
    certificate.subject = OpenSSL::X509::Name.new([["CN", subject]])
    certificate.issuer = (issuer || certificate).subject
    certificate.public_key = key
    certificate.not_before = from
    certificate.not_after = to
    factory = OpenSSL::X509::ExtensionFactory.new(issuer || certificate, certificate)
    extensions.each { |name, value, critical| certificate.add_extension(factory.create_extension(name, value, critical)) }
    certificate.sign(@key, "SHA256")
  end
end

//! The requests for in-band records (docs/in-band.md), between a program and Tollgate.
//!
//! Once a program has connected, Tollgate sends a word of four bytes: an errno or 0. After 0, it
//! sends a challenge. The request begins with the same bytes, so it was sent after Tollgate has
//! seen which program the process executes (docs/decisions/0012-in-band.md).

/// The variable of the environment that names the socket: a path, or "@NAME" for a name in the
/// abstract namespace (unix(7)).
pub const IN_BAND_VARIABLE: &str = "TOLLGATE_IN_BAND";
/// The name of a daemon's socket for in-band records, in the folder of its control socket.
pub const IN_BAND_SOCKET: &str = "in-band.sock";
/// The path of the socket if the variable is not set.
pub const DEFAULT_IN_BAND_SOCKET: &str = "/run/tollgate/in-band.sock";

/// What Tollgate sends after the first word.
pub type Challenge = [u8; 8];
/// The length of a request.
pub const IN_BAND_REQUEST_LEN: usize = size_of::<Challenge>() + 2 * size_of::<u32>();

/// A request of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InBandRequest {
    /// The records of one of its threads, by the thread's number in its own PID namespace. The
    /// reply has three words of four bytes: an errno or 0, the thread's entry, and the number of
    /// the memory, whose descriptor comes with the first byte. An errno is the only word.
    Records(u32),
    /// The kernel function that is a site of the process. The reply has a word, which is 0, and
    /// the name, which is empty if there is no such site.
    SiteName(u32),
    /// The file and line of a site, as for the name. It is empty also if they are not known.
    SiteSource(u32),
}

impl InBandRequest {
    fn words(self) -> [u32; 2] {
        match self {
            Self::Records(thread) => [1, thread],
            Self::SiteName(site) => [2, site],
            Self::SiteSource(site) => [3, site],
        }
    }

    /// The bytes of the request, after this challenge.
    pub fn to_bytes(self, challenge: Challenge) -> [u8; IN_BAND_REQUEST_LEN] {
        let mut bytes = [0; IN_BAND_REQUEST_LEN];
        let (start, words) = bytes.split_at_mut(challenge.len());
        start.copy_from_slice(&challenge);
        words.copy_from_slice(self.words().map(u32::to_ne_bytes).as_flattened());
        bytes
    }

    /// Parses the bytes of a request. `None`: it is not one, or not one after this challenge.
    pub fn parse(bytes: &[u8], challenge: Challenge) -> Option<Self> {
        let words = bytes.strip_prefix(challenge.as_slice())?;
        let word = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
        let (kind, of) = words.split_at_checked(size_of::<u32>())?;
        let of = word(of)?;
        [Self::Records(of), Self::SiteName(of), Self::SiteSource(of)]
            .into_iter()
            .find(|request| Some(request.words()[0]) == word(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_after_their_challenge_only() {
        let challenge = *b"12345678";
        for request in
            [InBandRequest::Records(7), InBandRequest::SiteName(8), InBandRequest::SiteSource(9)]
        {
            let bytes = request.to_bytes(challenge);
            assert_eq!(InBandRequest::parse(&bytes, challenge), Some(request));
            assert_eq!(InBandRequest::parse(&bytes, *b"12345679"), None);
            assert_eq!(InBandRequest::parse(&bytes[..15], challenge), None);
        }
        let unknown = [challenge.as_slice(), &[9, 0, 0, 0, 1, 0, 0, 0]].concat();
        assert_eq!(InBandRequest::parse(&unknown, challenge), None);
    }
}
